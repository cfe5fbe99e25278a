// SQL over the index: a box, its answer, and examples to begin with.

import { ask, post } from "./api.js";
import { fill, h } from "./dom.js";
import { count, plural, span } from "./format.js";
import { listing, panel } from "./parts.js";
import { change } from "./state.js";

const SHOWN = 1000;
const FIRST = "SELECT table_name, version, commits, rows_added, changed_at\nFROM tables WHERE ended_by IS NULL\nORDER BY commits DESC LIMIT 20";

export class SqlView {
  constructor(state) {
    this.box = h("textarea", {
      id: "question", rows: 6, spellcheck: false, value: state.sql ?? FIRST, autocomplete: "off",
      onkeydown: (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          this.run();
        }
      },
    });
    this.asked = state.sql !== undefined;
    this.answer = h("div.answer");
    this.examples = h("div.examples");
    this.button = h("button.run", { type: "button", onclick: () => this.run() }, "Run");
    this.save = h("button", { type: "button", hidden: true, onclick: () => this.download() }, "Save as CSV");
    this.element = h("div.page.sql", { tabIndex: 0 },
      h("div.title", {}, h("h1", {}, "SQL"), h("p.sub", {}, "One SELECT over the index of all decided transactions")),
      h("div.ask", {}, h("label", { htmlFor: "question" }, "Question"), this.box,
        h("p.tools", {}, this.button, h("span.note", {}, "Ctrl + Enter"), this.save)),
      this.answer, this.examples);
  }

  title() {
    return "SQL";
  }

  async start() {
    try {
      const [help, { tables }] = await Promise.all([
        post("v1/sql", { sql: "SELECT name, kind, example, meaning FROM help" }), ask("tables", { limit: 1 })]);
      const known = tables[0]?.table_name.replaceAll("'", "''");
      fill(this.examples, panel("What can be asked", listing(["Name", "What it answers", "Example"], help.rows.map(([name, , example, meaning]) => [
        h("code", {}, name), h("span.meant", {}, meaning), h("button.example", { type: "button", onclick: () => this.put(known ? example.replaceAll("ns$table", () => known) : example) }, example),
      ]), { label: "What can be asked" })));
    } catch (error) {
      if (error.status !== 404) throw error;
      this.button.disabled = true;
      fill(this.examples, h("p.empty", {}, "SQL is off here. Start the server without ", h("code", {}, "--no-sql"), " to turn it on, or ask ",
        h("code", {}, "commitlog sql"), " on the machine itself."));
      return;
    }
    if (this.asked) await this.run();
  }

  onStatus() {}

  stop() {}

  put(example) {
    this.box.value = example;
    this.box.focus();
    this.element.scrollTop = 0;
    this.run();
  }

  async run() {
    const sql = this.box.value.trim();
    if (!sql) return;
    change({ sql }, { quiet: true });
    this.button.disabled = true;
    this.save.hidden = true;
    const began = performance.now();
    try {
      const found = await post("v1/sql", { sql });
      this.found = found;
      const said = `${plural(found.rows.length, "row")}${found.is_cut ? ", and more that aren't shown" : ""} in ${span(performance.now() - began)}`;
      fill(this.answer, h("p.note", { role: "status" }, said, found.rows.length > SHOWN ? `; the first ${count(SHOWN)} are below` : ""),
        listing(found.columns.map((name, place) => [h("b", {}, name), h("span.type", {}, found.types[place].toLowerCase())]),
          found.rows.slice(0, SHOWN).map((row) => row.map(cell)), { label: "Answer", raw: true, none: "No rows." }));
      this.save.hidden = !found.rows.length;
    } catch (error) {
      fill(this.answer, h("p.problem", { role: "alert" }, h("pre", {}, error.message)));
    } finally {
      this.button.disabled = false;
    }
  }

  download() {
    const quote = (value) => (value === null ? "" : `"${text(value).replaceAll('"', '""')}"`);
    const lines = [this.found.columns, ...this.found.rows].map((row) => row.map(quote).join(","));
    const link = h("a", { href: URL.createObjectURL(new Blob([lines.join("\r\n")], { type: "text/csv" })), download: "answer.csv" });
    link.click();
    URL.revokeObjectURL(link.href);
  }
}

const text = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));

function cell(value) {
  if (value === null) return h("span.null", {}, "null");
  return typeof value === "number" ? String(value) : h("span.value", {}, text(value));
}
