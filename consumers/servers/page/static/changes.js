// The versions of a table, and how two of them differ.

import { ask } from "./api.js";
import { fill, h } from "./dom.js";
import { bytes, change as rowChange, count, plural, time, writerName } from "./format.js";
import { listing, panel } from "./parts.js";
import { address, change, current } from "./state.js";
import { transactionLink } from "./transaction.js";

const SHOWN = 60;

export class ChangesPane {
  constructor(state, view) {
    this.view = view;
    this.version = Number(state.v) || view.life.version;
    this.base = Number(state.base) || Math.max(1, this.version - 1);
    this.versions = h("div");
    this.result = h("div");
    this.element = h("div.changes.panes", { tabIndex: 0 }, this.choice(), this.result, this.versions);
    this.stopped = new AbortController();
  }

  choice() {
    const newest = this.view.life.version;
    const input = h("input", {
      type: "number", min: 1, max: newest, value: this.base, id: "base",
      onchange: () => input.value && change({ base: input.value }),
    });
    return h("p.compare", {}, h("label", { htmlFor: "base" }, "From version "), input, ` to version ${count(this.version)}`);
  }

  async start() {
    if (!this.version) {
      fill(this.result, h("p.note", {}, "The table has no version yet."));
      return;
    }
    const { signal } = this.stopped;
    const table = this.view.name;
    await Promise.all([
      ask("difference", { table, before: this.base, after: this.version }, signal).then((found) => this.draw(found)).catch((error) => {
        if (error.name === "AbortError") throw error;
        if (error.status === 0) this.view.redo();
        fill(this.result, h("p.problem", { role: "alert" }, error.message));
      }),
      ask("events", { table, limit: 400 }, signal).then((page) => this.drawVersions(page)),
    ]);
  }

  stop() {
    this.stopped.abort();
  }

  draw(found) {
    const signed = (value) => (value > 0 ? `+${count(value)}` : value < 0 ? `−${count(-value)}` : "no change");
    const size = found.bytes > 0 ? `+${bytes(found.bytes)}` : found.bytes < 0 ? `−${bytes(-found.bytes)}` : "no change";
    fill(this.result,
      h("p.verdict", {}, h("b", {}, plural(found.fragments_count, "fragment")), " changed; rows: ", h("b", {}, signed(found.rows)), "; size: ", h("b", {}, size), "."),
      found.fields.length ? panel("Fields", listing(["Change", "Before", "After"],
        found.fields.map((one) => [mark(one.change), h("code", {}, one.before ?? ""), h("code", {}, one.after ?? "")]), { label: "Fields" })) : null,
      panel("Fragments", listing(["Fragment", "Change", "Rows before", "Rows after", "Size before", "Size after", "Changed in", "Operation", "By"],
        found.fragments.map((one) => [count(one.fragment_id), mark(one.change), count(one.rows_before), count(one.rows_after),
          bytes(one.bytes_before), bytes(one.bytes_after), count(one.version), one.operation ?? "", writerName(one.writer)]),
        { label: "Fragments that changed", none: "No fragment differs: the same rows, in the same files." }),
      found.fragments_count > found.fragments.length ? h("p.note", {}, `The first ${count(found.fragments.length)} are shown.`) : null));
  }

  drawVersions({ columns, words }) {
    const rows = [];
    const made = columns.version ?? [];
    for (let place = 0; place < made.length && rows.length < SHOWN; place += 1) {
      const version = made[place];
      if (!version) continue;
      rows.push([
        h("a", { href: address({ view: "table", table: this.view.name, v: version }), "data-link": true, "aria-label": `Look at version ${version}` }, count(version)),
        time(columns.time[place]), words.operation[columns.operation[place]], writerName(words.writer[columns.writer[place]]),
        rowChange(columns.rows_added[place] ?? 0, columns.rows_removed[place] ?? 0),
        transactionLink(columns.sequence[place], "", count(columns.sequence[place])),
        version > 1 ? h("a", { href: address({ ...current(), v: version, base: version - 1 }), "data-link": true, "aria-label": `What version ${version} changed` }, "what changed") : "",
      ]);
    }
    fill(this.versions, panel("Versions", listing(["Version", "Time (UTC)", "Operation", "By", "Rows", "Position", "Difference"], rows, { label: "Versions, newest first" })));
  }
}

function mark(word) {
  return h(`span.mark.${word}`, {}, word);
}
