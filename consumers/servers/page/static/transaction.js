// One transaction: what it read, changed, collided with, and why it ended as it did.

import { ask } from "./api.js";
import { fill, h } from "./dom.js";
import { bytes, change as rowChange, count, plural, span, time, writerName } from "./format.js";
import { address, change, current } from "./state.js";

/** The panel beside a view; empty while the address names no transaction. */
export class TransactionPanel {
  constructor(element) {
    this.element = element;
    document.addEventListener("keydown", (event) => {
      // Wherever the focus is: a list keeps it while its transactions are shown beside it.
      if (event.key === "Escape" && !element.hidden && !event.target.closest?.("input, textarea, select")) this.close();
    });
  }

  async show(state) {
    const wanted = state.id ? { id: state.id } : state.tx ? { sequence: state.tx, partition: state.p || 0 } : null;
    const key = JSON.stringify(wanted);
    if (key === this.key) return;
    this.key = key;
    this.asked?.abort();
    if (!wanted) {
      this.element.hidden = true;
      return;
    }
    this.element.hidden = false;
    this.asked = new AbortController();
    try {
      const { attempts } = await ask("transaction", wanted, this.asked.signal);
      if (this.key === key) this.draw(attempts);
    } catch (error) {
      if (this.key === key) fill(this.element, this.top("Transaction"), h("p.problem", { role: "alert" }, error.message));
    }
  }

  close() {
    change({ tx: "", id: "", p: "" });
    document.querySelector("#view [tabindex='0']")?.focus();
  }

  top(title) {
    return h("div.top", {}, h("h2", {}, title),
      h("button.quiet", { type: "button", "aria-label": "Close the transaction", onclick: () => this.close() }, "✕"));
  }

  draw(attempts) {
    const [shown] = attempts;
    fill(this.element,
      this.top(`Position ${count(shown.sequence)}`),
      h(`p.verdict.${statusOf(shown)}`, {}, badge(statusOf(shown)), " ", sentence(shown)),
      shown.conflict ? conflictCard(shown) : null,
      shown.message && !shown.conflict ? h("p.reason", {}, shown.code ? h("code", {}, shown.code) : null, " ", shown.message) : null,
      shown.details.map((one) => operationCard(one, shown)),
      expectations(shown.expectations),
      others(attempts),
      facts(shown));
    this.element.scrollTop = 0;
  }
}

const statusOf = (row) => (row.answers !== null ? "repeated" : row.status);

/** A status as a word in its colour. */
export function badge(status) {
  return h(`span.badge.${status}`, {}, status);
}

/** A link to a transaction beside the present view. */
export function transactionLink(sequence, partition, ...text) {
  return h("a", { href: address({ ...current(), tx: sequence, p: partition || "", id: "" }), "data-link": true }, ...text);
}

function tableLink(name) {
  return h("a", { href: address({ view: "table", table: name }), "data-link": true }, name);
}

function sentence(row) {
  const who = h("b", {}, writerName(row.principal));
  if (row.answers !== null) {
    return ["asked again by ", who, "; answered by the commit at position ", transactionLink(row.answers, row.partition, count(row.answers)), "."];
  }
  const made = row.details.filter((one) => one.version !== null);
  if (row.status === "committed") {
    if (row.kind === "protocol") return ["a change of the log's rules."];
    if (made.length === 1) {
      const [one] = made;
      const over = one.rebased_over > 0 ? `, on top of ${plural(one.rebased_over, "version")} it had not read` : "";
      return ["by ", who, ": ", tableLink(one.table_name), " version ", h("b", {}, count(one.version)), over, "."];
    }
    const tables = new Set(row.tables).size;
    return ["by ", who, `: ${plural(row.details.length, "operation")} on ${plural(tables, "table")}, as one commit.`];
  }
  if (row.conflict) return ["by ", who, ": lost to ", h("b", {}, writerName(row.conflict.winner_principal)), "; nothing was changed."];
  return ["by ", who, ": refused; nothing was changed."];
}

function conflictCard(row) {
  const { conflict } = row;
  const winner = conflict.winner_sequence
    ? transactionLink(conflict.winner_sequence, conflict.partition, `position ${count(conflict.winner_sequence)}`)
    : h("code", {}, conflict.winner_transaction_id);
  return h("section.card.collision", { "aria-label": "Collision" },
    h("h3", {}, "Collided with"),
    h("p", {}, h("b", {}, writerName(conflict.winner_principal)), "’s ", conflict.winner_operation, " at ", winner,
      ", which made ", tableLink(conflict.table_name), " version ", count(conflict.winner_version)),
    list([
      ["Rule", h("code", {}, conflict.rule)],
      ["Fragments", chips(conflict.fragments)],
      ["Keys", chips(conflict.keys)],
      ["Why", row.message],
      ["Next", conflict.advice],
    ]));
}

function operationCard(one, row) {
  const fragments = [["+", one.fragments_added], ["~", one.fragments_updated], ["−", one.fragments_removed]]
    .filter(([, n]) => n).map(([sign, n]) => `${sign}${count(n)}`).join(" ");
  const files = row.refused_files.filter((file) => file.ordinal === one.ordinal);
  const changed = row.fragments.filter((fragment) => fragment.ordinal === one.ordinal);
  const set = row.changed.filter((each) => each.ordinal === one.ordinal && each.key !== null);
  return h("section.card", { "aria-label": `${one.operation} on ${one.table_name}` },
    h("h3", {}, one.operation, " ", one.is_table ? tableLink(one.table_name) : one.table_name,
      one.status !== row.status ? [" ", badge(one.status)] : null),
    lineage(one, row),
    list([
      ["Rows", rowChange(one.rows_added, one.rows_removed) || (one.status === "committed" ? one.message : "")],
      ["Fragments", fragments],
      ["Written", one.bytes_added ? bytes(one.bytes_added) : ""],
      ["Rebase", one.rebased ? "its deletions were merged with newer ones" : one.rebased_over > 0 ? "moved unchanged" : ""],
      ["Branch", one.branch],
      ["Renamed", one.name_after && one.name_after !== one.table_name ? one.name_after : ""],
      ["Location", one.location ? h("code", {}, one.location) : ""],
      ["Metadata", one.metadata_location ? h("code", {}, one.metadata_location) : ""],
      ["Set", set.length ? h("ul", {}, set.map(({ key, value }) => h("li", {},
        h("code", {}, value === null ? `${key} (removed)` : `${key} = ${value}`)))) : ""],
      ["Changed", changed.length ? h("details", {}, h("summary", {}, plural(changed.length, "fragment")),
        h("ul", {}, changed.map(fragmentLine))) : ""],
      ["Left over", files.length ? h("details", {}, h("summary", {}, plural(files.length, "data file")),
        h("ul", {}, files.map((file) => h("li", {}, h("code", {}, file.path))))) : ""],
    ]));
}

function fragmentLine(fragment) {
  const rows = fragment.removed ? "removed"
    : [plural(fragment.physical_rows ?? 0, "row"), fragment.deleted_rows ? `, ${count(fragment.deleted_rows)} deleted` : ""];
  return h("li", {}, h("span.chip", {}, fragment.fragment_id), " ", rows,
    (fragment.files ?? []).map((path) => h("div", {}, h("code", {}, path))));
}

/** The versions from what was read to what was made, or to what stood in the way. */
function lineage(one, row) {
  const found = one.lineage;
  if (!found || !found.versions.length) return null;
  const winner = row.conflict?.winner_version;
  const steps = found.versions.map((step) => {
    const role = step.version === one.version && one.version !== null ? "made"
      : step.version === found.read ? "read" : step.version === winner && row.status !== "committed" ? "winner" : "between";
    const word = { made: "made", read: "read", winner: "collided", between: "passed" }[role];
    return h(`li.${role}`, {}, h("span.role", {}, word), transactionLink(step.sequence, row.partition, `v${count(step.version)}`),
      h("span", {}, step.operation), h("span.who", {}, writerName(step.writer)));
  });
  if (found.left_out > 0) steps.splice(-1, 0, h("li.gap", {}, h("span.role"), `${plural(found.left_out, "more version")}`));
  return h("ol.lineage", { "aria-label": "Versions, newest first" }, steps);
}

function expectations(rows) {
  if (!rows.length) return null;
  return h("section.card", { "aria-label": "Expected" }, h("h3", {}, "Expected"),
    h("ul", {}, rows.map((one) => h("li", {}, one.kind, " ", tableLink(one.table_name),
      one.version !== null ? ` at version ${count(one.version)}` : "", one.detail ? [" ", h("code", {}, one.detail)] : null))));
}

function others(attempts) {
  if (attempts.length < 2) return null;
  return h("section.card", { "aria-label": "Attempts" }, h("h3", {}, plural(attempts.length, "decision"), " under this id"),
    h("ul", {}, attempts.map((one) => h("li", {}, transactionLink(one.sequence, one.partition, count(one.sequence)), " ",
      badge(statusOf(one)), ` attempt ${one.attempt}`))));
}

function facts(row) {
  const properties = row.properties ? Object.entries(JSON.parse(row.properties)) : [];
  return h("section.card.facts", { "aria-label": "Facts" }, h("h3", {}, "In the log"), list([
    ["Id", h("code", {}, row.transaction_id)],
    ["Decided", `${time(row.time, true)} UTC`],
    ["Submitted", row.submitted_at ? `${span(row.time - row.submitted_at)} earlier, by the writer’s clock` : ""],
    ["Attempt", row.attempt ? count(row.attempt) : ""],
    ["Stream", row.application_id ? `${row.application_id} #${count(row.application_sequence)}` : ""],
    ["Leader", `${row.node}, term ${count(row.epoch)}`],
    ["Offsets", `transaction ${count(row.transaction_offset)}, outcome ${count(row.outcome_offset)}`],
    ["Hash", row.hash ? h("code", {}, row.hash) : ""],
    ...properties.map(([key, value]) => [key, value]),
  ]));
}

function list(pairs) {
  const kept = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return kept.length ? h("dl", {}, kept.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])) : null;
}

function chips(values) {
  if (!values?.length) return "";
  const shown = values.slice(0, 40);
  return [...shown.map((one) => h("span.chip", {}, one)), values.length > shown.length ? ` and ${values.length - shown.length} more` : null];
}
