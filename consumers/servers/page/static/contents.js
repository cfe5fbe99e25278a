// What is in a table at a version: schema, files, indices, tags; and what keeps it fast.

import { ask, post } from "./api.js";
import { fill, h, svg } from "./dom.js";
import { ago, bytes, change as rowChange, count, plural, time, writerName } from "./format.js";
import { opening } from "./opening.js";
import { facts, listing, panel, tile } from "./parts.js";
import { address, current } from "./state.js";
import { badge, transactionLink } from "./transaction.js";

/** The settings of maintenance: the default where none is set, and what each does. */
const POLICY = [
  ["mode", "on", "whether maintenance looks at this table: on or off"],
  ["target-rows", "1,048,576", "rows of a full fragment"],
  ["small-fragments", "16", "how many small fragments are merged at once"],
  ["deleted-share", "0.2", "the share of deleted rows from which fragments are rewritten"],
  ["unindexed-share", "0.1", "the share of rows that an index may miss"],
  ["keep-manifests", "64", "manifest files that stay under the policy latest; 0: all"],
  ["history-share", "10", "older versions are thinned out once they take so many times the bytes of the newest one; 0: never"],
  ["history-hours", "1", "younger versions aren’t thinned out"],
  ["history-versions", "256", "so many of the newest versions aren’t thinned out either; fewer while they take too much"],
  ["expire-days", "0", "age in days from which versions are deleted; 0: never"],
  ["retain-versions", "0", "versions with so many newer ones are deleted; 0: none"],
  ["expire-rows-days", "0", "age in days from which rows of small writes leave the archive; 0: never"],
  ["remove-after-days", "7", "after how many days unneeded files are removed; 0: never"],
  ["remove-expired-after-hours", "6", "the same for files that only expired versions need, in hours; as remove-after-days if only that is set"],
  ["guard", "on", "whether a tag keeps Lance’s own cleanup from deleting versions"],
];
const PREFIX = "commitlog.maintain.";

/** The address of one API of the table's. */
export const tableApi = (name, rest) => `v1/table/${encodeURIComponent(name)}/${rest}`;

/** A pane of a table: it draws what `load` finds, again after each commit if it shows the newest. */
class Pane {
  constructor(state, view, kind) {
    this.view = view;
    this.name = view.name;
    this.version = Number(state.v) || null;
    this.element = h(`div.${kind}.panes`);
    this.stopped = new AbortController();
  }

  async start() {
    await this.load();
  }

  onStatus(status, moved) {
    this.now = status.now;
    if (!moved || this.version || this.busy) return;
    this.busy = this.load().catch(() => {}).finally(() => {
      this.busy = null;
    });
  }

  stop() {
    this.stopped.abort();
  }

  ask(name, parameters = {}) {
    return ask(name, { table: this.name, ...parameters }, this.stopped.signal);
  }

  post(rest, body) {
    return post(tableApi(this.name, rest), body, this.stopped.signal);
  }
}

export class OverviewPane extends Pane {
  constructor(state, view) {
    super(state, view, "overview");
    this.element.tabIndex = 0;
    this.tiles = h("div.tiles");
    this.grown = h("div");
    this.schema = h("div");
    this.open = h("div");
    this.settings = h("div");
    this.element.append(this.tiles, h("div.columns", {}, h("div", {}, this.schema, this.grown), h("div.side", {}, this.open, this.settings)));
    this.drawOpening();
    this.drawSettings();
  }

  onStatus(status, moved) {
    if (this.kafka !== status.kafka) {
      this.kafka = status.kafka;
      this.log = status.log;
      this.drawOpening();
    }
    super.onStatus(status, moved);
  }

  async load() {
    const found = await this.ask("contents", { version: this.version });
    this.drawTiles(found);
    const title = found.made && this.version ? `Schema at version ${count(found.version)}` : "Schema";
    fill(this.schema, panel(title, listing(["Field", "Type", "Nulls"], found.fields.map((one) => [
      h("code", { className: `depth${Math.min(3, one.name.split(".").length - 1)}` }, one.name), h("code", {}, one.type), one.nullable ? "yes" : "no",
    ]), { label: "Schema", none: "No schema is known: the table was declared only, or written past the log." })));
    if (!this.version) this.ask("growth").then((points) => this.drawGrowth(points)).catch(() => {});
  }

  drawTiles(found) {
    if (found.format === "iceberg") return this.drawIceberg(found);
    const { totals, made } = found;
    fill(this.tiles,
      tile("rows", count(totals.rows ?? 0), totals.deleted_rows ? `and ${count(totals.deleted_rows)} deleted ones still in files` : "none deleted"),
      tile("fragments", count(totals.fragments), plural(totals.files ?? 0, "data file")),
      tile("size", bytes(totals.bytes ?? 0), totals.rows ? `${bytes((totals.bytes ?? 0) / totals.rows)} per row` : ""),
      tile(`version ${count(found.version)}`, made ? made.operation : "–", made ? [
        this.now ? ago(made.time, this.now) : time(made.time), " by ", writerName(made.writer), ", ",
        transactionLink(made.sequence, made.partition, `position ${count(made.sequence)}`)] : ""));
    return null;
  }

  drawIceberg(found) {
    const [newest] = found.snapshots;
    const summary = newest?.summary ? JSON.parse(newest.summary) : {};
    fill(this.tiles,
      tile("rows", summary["total-records"] ? count(Number(summary["total-records"])) : "–", "by the newest snapshot"),
      tile("data files", summary["total-data-files"] ? count(Number(summary["total-data-files"])) : "–", "by the newest snapshot"),
      tile("size", summary["total-files-size"] ? bytes(Number(summary["total-files-size"])) : "–", ""),
      tile("snapshots", count(found.snapshots.length), newest ? `${newest.operation} at ${time(newest.time)} UTC` : "none yet"));
  }

  drawGrowth(points) {
    if (points.length < 3) return;
    const last = points.at(-1);
    fill(this.grown, panel("Growth", h("div.spark", {}, ...["rows", "bytes"].map((name) => {
      const most = Math.max(1, ...points.map((one) => one[name] ?? 0));
      const line = points.map((one, place) => `${((place / (points.length - 1)) * 300).toFixed(1)},${(58 - ((one[name] ?? 0) / most) * 54).toFixed(1)}`).join(" ");
      const said = name === "rows" ? count(last.rows) : bytes(last.bytes);
      return h("figure", {}, svg("svg", { viewBox: "0 0 300 60", preserveAspectRatio: "none", role: "img", "aria-label": `${name} over the versions, now ${said}` },
        svg("polyline", { points: line })), h("figcaption", {}, `${name === "rows" ? "Rows" : "Size"}, now ${said}`));
    }))));
  }

  drawOpening() {
    const { life } = this.view;
    fill(this.open, panel("Open it", opening({ name: this.name, version: this.version, format: life.format, kafka: this.kafka, log: this.log })));
  }

  drawSettings() {
    const { life, about } = this.view;
    fill(this.settings, panel("Settings", facts([
      ["Format", life.format],
      ["Key", life.primary_key?.join(", ")],
      ["Manifests", life.policy ? `${life.policy}: ${life.policy === "every" ? "each version has a file" : "a group of commits has one file"}` : ""],
      ["Location", life.location ? h("code", {}, life.location) : ""],
      ["Made", life.created_at ? [`${time(life.created_at)} UTC`, " by ", writerName(life.created_by)] : ""],
      ["Partition", life.partition !== undefined ? String(life.partition) : ""],
    ]), about.properties.length ? listing(["Setting", "Value"], about.properties.map((one) => [h("code", {}, one.key), h("code", {}, one.value)]), { label: "Settings" }) : null));
  }
}

export class FilesPane extends Pane {
  constructor(state, view) {
    super(state, view, "files");
    this.element.tabIndex = 0;
  }

  async load() {
    const found = await this.ask("contents", { version: this.version });
    const { totals } = found;
    this.shown = found.fragments;
    this.list = h("div");
    fill(this.element,
      h("div.tiles", {},
        tile("fragments", count(totals.fragments), plural(totals.files ?? 0, "data file")),
        tile("live rows", count(totals.rows ?? 0), `of ${count(totals.physical_rows ?? 0)}`),
        tile("deleted", share(totals), `${count(totals.deleted_rows ?? 0)} rows`),
        tile("size", bytes(totals.bytes ?? 0), totals.fragments ? `${bytes((totals.bytes ?? 0) / totals.fragments)} per fragment` : "")),
      this.list);
    this.draw(found.after);
  }

  draw(after) {
    const rows = this.shown.map((one) => [
      count(one.fragment_id), count(one.rows), deletedBar(one), bytes(one.bytes), fileList(one),
      h("a", { href: address({ ...current(), tab: "changes", v: one.changed_in }), "data-link": true }, count(one.changed_in)),
    ]);
    fill(this.list, panel("Fragments", listing(["Fragment", "Live rows", "Deleted", "Size", "Files", "Changed in"], rows, { label: "Fragments", none: "The table has no rows." }),
      after === null ? null : h("p", {}, h("button", { type: "button", onclick: () => this.more(after) }, "Show more fragments"))));
  }

  async more(after) {
    const found = await this.ask("contents", { version: this.version, after });
    this.shown = [...this.shown, ...found.fragments];
    this.draw(found.after);
  }
}

const share = ({ deleted_rows: deleted, physical_rows: all }) => (all ? `${((100 * (deleted ?? 0)) / all).toFixed(1)} %` : "0 %");

function deletedBar(one) {
  if (!one.deleted_rows) return "–";
  const part = share(one);
  const bar = h("i");
  bar.style.width = part.replace(" ", "");
  return h("span.share", {}, h("span.track", { "aria-hidden": "true" }, bar), `${part} (${count(one.deleted_rows)})`);
}

function fileList(one) {
  const files = [...(one.files ?? []).map((file) => `data/${file}`), ...(one.deletion_file ? [one.deletion_file] : [])];
  return h("details", {}, h("summary", {}, plural(files.length, "file")), h("ul", {}, files.map((file) => h("li", {}, h("code", {}, file)))));
}

export class ReferencesPane extends Pane {
  constructor(state, view) {
    super(state, view, "names");
    this.element.tabIndex = 0;
  }

  async load() {
    if (!this.view.isLance) return this.loadIceberg();
    const [indices, tags, branches] = await Promise.all([
      this.attempt("index/list", this.version ? { version: this.version } : {}),
      this.attempt("tags/list", {}), this.attempt("branches/list", {}),
    ]);
    fill(this.element,
      panel("Indices", this.said(indices, ({ indexes }) => listing(["Index", "Columns", "Kind", "Covered", "Not covered", "Size", "Parts"],
        indexes.map((one) => [one.index_name, one.columns.join(", "), one.index_type, count(one.num_indexed_rows), count(one.num_unindexed_rows),
          bytes(one.size_bytes), count(one.num_segments)]), { label: "Indices", none: "The table has no index." }))),
      panel("Tags", this.said(tags, (found) => listing(["Tag", "Version", "Branch"],
        Object.entries(found.tags).map(([name, one]) => [name, one.branch ? count(one.version) : this.versionLink(one.version), one.branch ?? "main"]),
        { label: "Tags", none: "No version has a tag." }))),
      panel("Branches", this.said(branches, (found) => listing(["Branch", "Made from", "At version"],
        Object.entries(found.branches).map(([name, one]) => [name, one.parentBranch ?? one.parent_branch ?? "main",
          count(one.parentVersion ?? one.parent_version)]),
        { label: "Branches", none: "There is only the main line." }))));
    return null;
  }

  versionLink(version) {
    return h("a", { href: address({ view: "table", table: this.name, v: version }), "data-link": true }, count(version));
  }

  async loadIceberg() {
    const found = await this.ask("contents");
    fill(this.element,
      panel("Tags and branches", listing(["Name", "Kind", "Snapshot", "Set"],
        found.refs.map((one) => [one.name, one.kind, h("code", {}, one.snapshot_id), time(one.time)]), { label: "Tags and branches", none: "None." })),
      panel("Snapshots", listing(["Snapshot", "Operation", "Time (UTC)", "By", "Position"],
        found.snapshots.map((one) => [h("code", {}, one.snapshot_id), one.operation, time(one.time), writerName(one.writer),
          transactionLink(one.sequence, one.partition, count(one.sequence))]), { label: "Snapshots", none: "None yet." })));
  }

  /** An answer, or the error in its place: one part that fails leaves the others. */
  async attempt(rest, body) {
    try {
      return { found: await this.post(rest, body) };
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (error.status === 0) this.view.redo();
      return { error };
    }
  }

  said({ found, error }, draw) {
    return error ? h("p.problem", { role: "alert" }, error.message) : draw(found);
  }
}

/** A setting and, if the table inherits it, from which namespace; the root of all has no name. */
function valueOf({ value, namespace }) {
  const from = namespace === undefined ? "" : ` (from ${namespace || "the root of all namespaces"})`;
  return [h("b", {}, value), from];
}

export class UpkeepPane extends Pane {
  constructor(state, view) {
    super(state, view, "upkeep");
    this.element.tabIndex = 0;
  }

  async load() {
    const found = await this.ask("upkeep");
    const { properties, inherited } = this.view.about;
    const set = new Map([...inherited, ...properties].filter((one) => one.key.startsWith(PREFIX))
      .map((one) => [one.key.slice(PREFIX.length).replaceAll("_", "-"), one]));
    fill(this.element,
      panel("What maintenance did", listing(["Time (UTC)", "What", "Reason", "Outcome", "Fragments", "Position"], found.map((one) => [
        time(one.time), one.operation, one.reason ?? "", badge(one.status), rowChange(one.fragments_added ?? 0, one.fragments_removed ?? 0),
        transactionLink(one.sequence, one.partition, count(one.sequence)),
      ]), { label: "What maintenance did", none: "Nothing was due so far." })),
      panel("Its settings", h("p.note", {}, "Properties named ", h("code", {}, `${PREFIX}…`), ", the table’s own or its namespaces’, change this; so does ",
        h("code", {}, "commitlog maintain --policy"), ". ",
        h("code", {}, "commitlog maintain --dry-run"), " lists what is due now."),
      listing(["Setting", "Value", "Meaning"], POLICY.map(([name, usual, meaning]) => [
        h("code", {}, name), set.has(name) ? valueOf(set.get(name)) : `${usual} (default)`, meaning,
      ]), { label: "Settings of maintenance" })));
  }
}
