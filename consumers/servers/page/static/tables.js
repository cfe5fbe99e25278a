// All tables and their heads.

import { ask } from "./api.js";
import { fill, h } from "./dom.js";
import { ago, bytes, compact, count, plural, writerName } from "./format.js";
import { Rows } from "./rows.js";
import { change, go } from "./state.js";

const COLUMNS = [
  { name: "name", title: "Table" },
  { name: "version", title: "Version", numeric: true },
  { name: "changed", title: "Changed", numeric: true },
  { name: "writer", title: "By" },
  { name: "commits", title: "Commits", numeric: true },
  { name: "rowcount", title: "Rows", numeric: true },
  { name: "bytes", title: "Written", numeric: true },
  { name: "format", title: "Format" },
];

/** The first view: a list of tables, to be searched and opened. */
export class TablesView {
  constructor(state) {
    this.query = state.q ?? "";
    this.ended = state.ended === "1";
    this.tables = [];
    this.shown = [];
    this.now = Date.now();
    this.rows = new Rows({
      label: "Tables", columns: COLUMNS, rowHeight: 30,
      draw: (cells, index) => this.drawRow(cells, this.shown[index]),
      onOpen: (index) => go({ view: "table", table: this.shown[index].table_name }),
    });
    this.summary = h("p.sub");
    this.search = h("input", {
      type: "search", placeholder: "Find a table", "aria-label": "Find a table", value: this.query, spellcheck: false,
      oninput: () => {
        this.query = this.search.value;
        change({ q: this.query }, { quiet: true });
        this.filter();
      },
    });
    const old = h("input", {
      type: "checkbox", checked: this.ended,
      onchange: () => change({ ended: old.checked ? "1" : "" }),
    });
    this.element = h("div.page.tables", {},
      h("div.title", {}, h("h1", {}, "Tables"), this.summary,
        h("div.actions", {}, h("label.check", {}, old, "dropped too"), this.search)),
      this.rows.element);
  }

  title() {
    return "Tables";
  }

  async start() {
    await this.load();
  }

  async load() {
    const found = [];
    let after = ["", ""];
    do {
      const page = await ask("tables", { after: after[0], incarnation: after[1], ended: this.ended ? 1 : 0 });
      found.push(...page.tables);
      after = page.after;
      this.tables = found;
      this.filter();
    } while (after);
  }

  filter() {
    const wanted = this.query.toLowerCase();
    this.shown = this.tables.filter((one) => one.table_name.toLowerCase().includes(wanted));
    const commits = this.shown.reduce((sum, one) => sum + one.commits, 0);
    fill(this.summary, this.tables.length
      ? `${plural(this.shown.length, "table")}, ${plural(commits, "commit")}`
      : "The log has no table yet.");
    this.rows.resize(this.shown.length);
  }

  onStatus(status, moved) {
    this.now = status.now;
    if (moved) this.load().catch(() => {});
    else this.rows.refresh();
  }

  stop() {
    this.rows.stop();
  }

  drawRow(cells, one) {
    const texts = [
      one.table_name, one.version === null ? "–" : count(one.version), ago(one.changed_at, this.now),
      writerName(one.changed_by), count(one.commits), compact(one.rows_added - one.rows_removed),
      bytes(one.bytes_added), one.ended_by ?? one.format ?? "",
    ];
    texts.forEach((text, cell) => put(cells[cell], text));
    return one.ended_by ? " ended" : "";
  }
}

/** Write a text into a cell unless it is there. */
export function put(cell, text) {
  if (cell.textContent !== text) cell.textContent = text;
}
