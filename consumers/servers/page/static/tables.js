// All tables and their heads, by namespace.

import { ask } from "./api.js";
import { fill, h, legible } from "./dom.js";
import { ago, bytes, compact, count, plural, writerName } from "./format.js";
import { Rows } from "./rows.js";
import { change, go } from "./state.js";
import { tour } from "./tour.js";
import { Tree } from "./tree.js";

const COLUMNS = [
  { name: "name", title: "Table" },
  { name: "version", title: "Version", numeric: true },
  { name: "changed", title: "Changed", numeric: true },
  { name: "writer", title: "By" },
  { name: "commits", title: "Commits", numeric: true },
  { name: "rowcount", title: "Rows", numeric: true },
  { name: "bytes", title: "Size", numeric: true },
  { name: "format", title: "Format" },
];
/** The first answer is short, so that something is seen at once. */
const FIRST_PAGE = 200;
/** How many tables are measured at a time. */
const MEASURED = 100;

/** The first view: a tree of tables, to be searched and opened. */
export class TablesView {
  constructor(state) {
    this.query = state.q ?? "";
    this.ended = state.ended === "1";
    this.tables = [];
    this.shown = [];
    this.now = Date.now();
    this.tree = new Tree();
    this.rows = new Rows({
      label: "Tables", columns: COLUMNS, rowHeight: 30,
      draw: (cells, index) => this.drawRow(cells, this.shown[index]),
      onOpen: (index) => this.open(this.shown[index]),
      level: (index) => ({ depth: this.shown[index].depth, open: this.shown[index].space ? this.shown[index].open : null }),
      onTurn: (index, open) => this.turn(index, open),
      onScroll: () => this.measure(),
    });
    this.sizes = new Map();
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
    this.empty = h("div.empty", { hidden: true });
    this.element = h("div.page.tables", {},
      h("div.title", {}, h("h1", {}, "Tables"), this.summary,
        h("div.actions", {}, h("label.check", {}, old, "dropped too"), this.search)),
      this.empty, this.rows.element);
  }

  title() {
    return "Tables";
  }

  async start() {
    const page = await this.page(["", ""], FIRST_PAGE);
    this.isWhole = !page.after;
    this.take(page.tables);
    if (page.after) this.busy = this.loadAll(page).catch(() => {});
  }

  /** Load the pages that follow one, then show all. */
  async loadAll(page) {
    const found = [...page.tables];
    while (page.after) {
      page = await this.page(page.after, null);
      found.push(...page.tables);
    }
    this.isWhole = true;
    this.busy = null;
    this.take(found);
  }

  reload() {
    this.busy ??= this.page(["", ""], null).then((page) => this.loadAll(page)).catch(() => {
      this.busy = null;
    });
  }

  page(after, limit) {
    return ask("tables", { after: after[0], incarnation: after[1], ended: this.ended ? 1 : 0, limit });
  }

  take(tables) {
    this.tables = tables;
    this.filter();
  }

  filter() {
    const wanted = this.query.toLowerCase();
    const found = wanted ? this.tables.filter((one) => one.table_name.toLowerCase().includes(wanted)) : this.tables;
    this.shown = wanted ? found.map((one) => ({ one, word: one.table_name, depth: 0 })) : this.tree.rows(found, this.isWhole);
    const commits = found.reduce((sum, one) => sum + one.commits, 0);
    fill(this.summary, !this.isWhole ? "Loading…" : this.tables.length ? `${plural(found.length, "table")}, ${plural(commits, "commit")}` : "");
    this.drawEmpty(wanted && !found.length);
    this.rows.resize(this.shown.length);
  }

  drawEmpty(nothingFound) {
    const isNew = !this.tables.length;
    this.empty.hidden = !(isNew || nothingFound);
    this.rows.element.hidden = !this.empty.hidden;
    if (isNew && !this.touring) {
      this.touring = true;
      fill(this.empty, tour(this.status));
    } else if (nothingFound) {
      this.suggest(this.query);
    }
    if (!isNew) this.touring = false;
  }

  async suggest(query) {
    const { near } = await ask("near", { table: query }).catch(() => ({ near: [] }));
    if (query !== this.query) return;
    fill(this.empty, h("p", {}, `No table's name has “${query}” in it.`), near.length ? meant(near) : null);
  }

  open(row) {
    if (row.space) this.turn(this.shown.indexOf(row), !row.open);
    else go({ view: "table", table: row.one.table_name });
  }

  /** Open or close a namespace; the arrow to the left leads from a table to its namespace. */
  turn(index, open) {
    const row = this.shown[index];
    if (row.space && row.open !== open) {
      this.tree.turn(row.path);
      this.filter();
    } else if (!open) {
      const above = this.shown.slice(0, index).findLastIndex((one) => one.space && one.depth < row.depth);
      if (above >= 0) this.rows.select(above);
    } else if (row.space) this.rows.select(index + 1);
  }

  onStatus(status, moved) {
    this.now = status.now;
    const first = !this.status;
    this.status = status;
    if (first && this.touring) fill(this.empty, tour(status));
    if (moved) this.reload();
    else this.rows.refresh();
  }

  stop() {
    this.rows.stop();
  }

  /** Ask for what the tables in sight hold, once per version. */
  async measure() {
    if (this.measuring) return;
    const [first, last] = this.rows.range;
    const wanted = this.shown.slice(first, last + 1).map((row) => row.one)
      .filter((one) => one?.format === "lance" && one.incarnation && this.sizes.get(one.incarnation)?.version !== one.version).slice(0, MEASURED);
    if (!wanted.length) return;
    this.measuring = true;
    try {
      const { sizes } = await ask("sizes", { of: wanted.map((one) => one.incarnation).join(",") });
      for (const one of wanted) {
        const [rows, bytes] = sizes[one.incarnation] ?? [one.version ? null : 0, null];
        this.sizes.set(one.incarnation, { version: one.version, rows, bytes });
      }
    } catch {
      return; // the next look asks again
    } finally {
      this.measuring = false;
    }
    this.rows.refresh();
  }

  drawRow(cells, row) {
    const texts = row.space ? [
      row.word, "", row.changed_at ? ago(row.changed_at, this.now) : "", plural(row.tables, "table"), count(row.commits), "", "", "",
    ] : tableTexts(row, this.now, this.sizes.get(row.one.incarnation));
    texts.forEach((text, cell) => put(cells[cell], text));
    if (row.space) return ` space ${row.open ? "open" : "closed"}`;
    return row.one.ended_by ? " ended" : "";
  }
}

function tableTexts({ one, word }, now, size) {
  const isLance = one.format === "lance";
  const rows = isLance ? size?.rows : one.rows_added - one.rows_removed;
  return [
    word, one.version === null ? "–" : count(one.version), ago(one.changed_at, now),
    writerName(one.changed_by), count(one.commits), isLance && !size ? "" : compact(rows),
    isLance ? (size ? bytes(size.bytes) : "") : bytes(one.bytes_added), one.ended_by ?? one.format ?? "",
  ];
}

/** "Did you mean", with links. */
export function meant(names) {
  return h("p.meant", {}, "Did you mean ", names.map((name, place) => [
    place ? (place === names.length - 1 ? " or " : ", ") : "", h("a", { href: `?${new URLSearchParams({ view: "table", table: name })}`, "data-link": true }, name),
  ]), "?");
}

/** Write a text into a cell unless it is there. */
export function put(cell, text) {
  const shown = legible(text);
  if (cell.textContent !== shown) cell.textContent = shown;
}
