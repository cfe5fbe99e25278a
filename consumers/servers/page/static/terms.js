// Headings that explain themselves: what a word means, where it stands, by pointer and by keyboard.

import { h } from "./dom.js";

const MEANINGS = {
  Table: "A table's name. The parts before the last $ are its namespaces.",
  Version: "The number of the table's newest version. Every commit to a table makes the next one.",
  Changed: "When the table was last committed to, by the log's clock.",
  By: "Who made the last commit: the principal that the writer gave.",
  Commits: "Transactions that changed this table.",
  Rows: "Rows that a reader sees, by the files of the newest version. In lists of commits: rows added and removed.",
  Format: "Lance or Iceberg.",
  Position: "The transaction's place in the order of its partition. Every attempt has one, refused ones too.",
  Outcome: "What the log decided: committed, rebased over newer commits, or refused, and how.",
  Operation: "What the transaction did to the table, in the format's own words.",
  Writer: "The principal that the writer gave.",
  Read: "The version that the writer had read.",
  Made: "The version that the commit made.",
  Over: "How many versions were committed between reading and committing. The commit was rebased over them.",
  Field: "A column, or a part of one: a.b is the field b in the struct a.",
  Type: "The type, in the format's words.",
  Nulls: "Whether the field may be null.",
  Fragment: "A part of a Lance table: some rows, in one or more data files.",
  "Live rows": "Rows that a reader sees: all rows of the fragment without the deleted ones.",
  Deleted: "Deleted rows stay in the data file until a compaction. A deletion file names them.",
  Size: "Bytes of the data files.",
  Files: "Data files. A fragment has a second one where columns were added later.",
  "Changed in": "The version that changed this fragment last.",
  Index: "A secondary index of Lance, which makes searches faster.",
  Covered: "Rows in the index. A scan finds the others until the index is updated.",
  Tag: "A name for one version. Lance never cleans up a tagged version.",
  Branch: "A line of versions beside the main one.",
  Snapshot: "A state of an Iceberg table.",
  Change: "What happened to the fragment or field between the two versions.",
  Reason: "Why maintenance acted.",
  Setting: "A property of the table. Properties named commitlog.* change how the log treats it.",
  Partition: "A part of the log with its own order. Each has one leader.",
  Behind: "Outcomes that are in the log and not in the index yet.",
  Leader: "The process that decides this partition's transactions.",
  Term: "How many leaders the partition has had. A new leader starts a new term.",
  Transactions: "Everything that was submitted, refused attempts too.",
  Committed: "Transactions that took effect.",
  Rebased: "Committed on top of newer versions that the writer had not read.",
  Retryable: "Refused because something newer won. Reading again and redoing the operation may succeed.",
  Incompatible: "Refused because something newer won, and a redo may mean something else.",
  Before: "As it was at the older version.",
  After: "As it is at the newer version.",
  "Rows before": "Live rows of the fragment at the older version.",
  "Rows after": "Live rows of the fragment at the newer version.",
  "Size before": "Bytes of its data files at the older version.",
  "Size after": "Bytes of its data files at the newer version.",
  "Time (UTC)": "When the log decided it, by the log's clock.",
  When: "When the log decided it, by the log's clock.",
  Difference: "What the version changed, compared with the one before.",
  Value: "What the setting is at this version.",
  Meaning: "What the setting does.",
  Columns: "The indexed columns.",
  Kind: "What sort of thing it is.",
  "Not covered": "Live rows that aren't in the index yet. A search scans them.",
  Parts: "An updated index has several parts until they are merged.",
  "Made from": "The branch and version from which it was created.",
  "At version": "The newest version of the branch.",
  Name: "What it is called.",
  Set: "When it was last set to its snapshot, in UTC.",
  What: "What maintenance did.",
  Fragments: "Parts of a Lance table: each holds some rows, in one or more data files.",
  "Which fragments": "The fragments that both wanted to change, by their numbers.",
  "Writer against writer": "How often each writer lost to each other writer. A click on a number lists these collisions below.",
  "lost ↓ to →": "A row is a refused writer, a column the writer whose commit came first.",
  "Newest collisions": "Refused transactions and those that won over them. A click on a position shows the whole transaction.",
  "Fragments under contention": "Where writers collide most. Smaller fragments, or separate fragments for each writer, reduce collisions.",
  Rules: "Why transactions were refused, by the rules of the conflict grid, and whether a redo may succeed.",
  Tables: "Tables in which transactions lost, and how often.",
  Indices: "Secondary indices of Lance, which make searches faster.",
  Tags: "Names for single versions. Lance never cleans up a tagged version.",
  Branches: "Lines of versions beside the main one.",
  Growth: "Rows and bytes of the table, version by version.",
  Since: "When this leader's term began.",
  Share: "Part of all transactions.",
  "Rows added": "Rows that the writer's commits added; a compaction adds none.",
  Seen: "When the writer's last transaction was decided.",
  "What it answers": "What the query returns.",
  Example: "A query to try. A click puts it into the box.",
  Loser: "The writer who was refused.",
  Winner: "The writer whose commit came first.",
  Rule: "The rule of the conflict grid that decided.",
  did: "The operation, in the format's own words.",
  Rejected: "Refused because the request itself is wrong.",
};

const tip = h("div.meaning", { id: "meaning", role: "tooltip", hidden: true });
document.body.append(tip);
let shown = null;

/** A heading: its word, and its meaning where there is one. */
export function term(word) {
  const meaning = MEANINGS[word];
  return meaning ? h("span.term", { tabIndex: 0, "data-meaning": meaning, "aria-describedby": "meaning" }, word) : word;
}

function show(event) {
  const target = event.target.closest?.("[data-meaning]");
  if (!target || target === shown) return;
  shown = target;
  tip.textContent = target.dataset.meaning;
  tip.hidden = false;
  const place = target.getBoundingClientRect();
  const left = Math.min(place.left, innerWidth - tip.offsetWidth - 8);
  const below = place.bottom + 6 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below ? place.bottom + 6 : place.top - 6 - tip.offsetHeight}px`;
}

function hide() {
  shown = null;
  tip.hidden = true;
}

for (const name of ["pointerover", "focusin"]) document.addEventListener(name, show);
document.addEventListener("pointerout", (event) => event.target === shown && hide());
document.addEventListener("focusout", hide);
document.addEventListener("scroll", hide, { capture: true, passive: true });
document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
