// Rows of a table at a version, page by page, with a filter.

import { post } from "./api.js";
import { tableApi } from "./contents.js";
import { fill, h } from "./dom.js";
import { count } from "./format.js";
import { listing } from "./parts.js";
import { change } from "./state.js";

const PAGE = 50;
const PAGE_MIN = 10;
/** A browser takes seconds for more of them. */
const CELLS_MAX = 20_000;

export class RowsPane {
  constructor(state, view) {
    this.view = view;
    this.version = Number(state.v) || null;
    this.where = state.where ?? "";
    this.offset = Math.max(0, Number(state.offset) || 0);
    this.stopped = new AbortController();
    this.body = h("div.preview");
    const input = h("input", {
      type: "search", id: "where", value: this.where, spellcheck: false, placeholder: "amount > 10 AND who = 'ann'",
      "aria-label": "Only rows where", autocomplete: "off",
    });
    this.element = h("div.rowsof.panes", {}, h("form.filter", {
      onsubmit: (event) => {
        event.preventDefault();
        change({ where: input.value, offset: "" });
      },
    }, h("label", { htmlFor: "where" }, "where"), input, h("button", { type: "submit" }, "Show"), this.pages = h("span.pages")), this.body);
  }

  async start() {
    if (!this.view.isLance) {
      fill(this.body, h("p.note", {}, "Rows of Iceberg tables aren't read by this server. Open the table as the overview says."));
      return;
    }
    if (!this.view.life.version) {
      fill(this.body, h("p.note", {}, "The table has no version yet, so there are no rows."));
      return;
    }
    fill(this.body, h("p.note", { role: "status" }, "Reading…"));
    const body = { k: PAGE + 1, offset: this.offset };
    if (this.version) body.version = this.version;
    if (this.where) body.filter = this.where;
    try {
      this.draw(await post(`${tableApi(this.view.name, "query")}?as=preview`, body, this.stopped.signal));
    } catch (error) {
      if (this.stopped.signal.aborted) return;
      if (error.status === 0) this.view.redo();
      fill(this.body, h("p.problem", { role: "alert" }, error.message));
    }
  }

  /** The newest version moves on: what is looked at stays, and a button brings the newest. */
  onStatus(status, moved) {
    if (!moved || this.version || this.offered || !this.shown) return;
    this.offered = true;
    this.pages.append(h("button", { type: "button", onclick: () => { this.offered = false; this.start(); } }, "Newer rows"));
  }

  stop() {
    this.stopped.abort();
  }

  draw(found) {
    this.shown = true;
    const page = Math.max(PAGE_MIN, Math.min(PAGE, Math.floor(CELLS_MAX / Math.max(found.columns.length, 1))));
    const rows = found.rows.slice(0, page);
    const heads = found.columns.map((one) => [h("b", {}, one.name), h("span.type", {}, one.type)]);
    fill(this.body, listing(heads, rows.map((row) => row.map(cell)), {
      label: "Rows", raw: true, none: this.where ? "No row is so." : this.offset ? "There are no more rows." : "The table is empty.",
    }));
    const to = (offset, word) => h("button", { type: "button", onclick: () => change({ offset: offset || "" }) }, word);
    fill(this.pages, rows.length ? `rows ${count(this.offset + 1)} to ${count(this.offset + rows.length)}` : "",
      this.offset ? to(Math.max(0, this.offset - page), "Before") : null,
      found.rows.length > page ? to(this.offset + page, "Next") : null);
  }
}

function cell(value) {
  if (value === null) return h("span.null", {}, "null");
  if (typeof value === "number") return String(value);
  return typeof value === "boolean" ? h("code", {}, String(value)) : value;
}
