// Small parts that several views are made of: listings, tiles, lists of facts, code to copy.

import { h } from "./dom.js";
import { term } from "./terms.js";

/** A listing with explained headings; cells are texts or nodes. Numbers are set to the right. */
export function listing(heads, rows, { label, none = "Nothing yet.", raw = false } = {}) {
  if (!rows.length) return h("p.note", {}, none);
  const isNumber = (cell) => typeof cell === "string" && /^[\d−+-][\d,.\s%KMBTi]*$/.test(cell);
  const isNone = (cell) => cell === "" || cell === "–" || cell?.className === "null";
  const numeric = heads.map((_, place) => rows.every((row) => isNumber(row[place]) || isNone(row[place]))
    && rows.some((row) => isNumber(row[place])));
  const kind = (name, place) => (numeric[place] ? `${name}.numeric` : name);
  return h("div.scroll", { tabIndex: 0, role: "region", "aria-label": `${label ?? `${heads[0]}s`}, as a table` }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((head, place) => h(kind("th", place), { scope: "col" }, raw ? head : term(head))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, place) => h(kind("td", place), {}, cell)))))));
}

/** A number with its name above and a note below. */
export function tile(name, value, note = "") {
  return h("div.tile", {}, h("span.name", {}, name), h("b", {}, value), h("span.note", {}, note));
}

/** Names and values; those without a value are left out. */
export function facts(pairs) {
  const kept = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return kept.length ? h("dl", {}, kept.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])) : null;
}

export function panel(title, ...children) {
  return h("section.panel", { "aria-label": title }, h("h2", {}, term(title)), children);
}

/** Code, and a button that copies it. */
export function code(text, label) {
  const button = h("button.copy", {
    type: "button",
    onclick: async () => {
      const done = await copy(text, button);
      button.textContent = done ? "Copied" : "Select and copy";
      said.textContent = done ? `${label}: copied` : "";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    },
  }, "Copy");
  button.setAttribute("aria-label", `Copy: ${label}`);
  const said = h("span.sr", { role: "status" });
  return h("div.code", {}, h("pre", { tabIndex: 0, role: "region", "aria-label": label }, h("code", {}, text)), button, said);
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without a secure context there is no clipboard: the text is selected for the reader.
    getSelection().selectAllChildren(button.previousElementSibling);
    return false;
  }
}

/** Buttons of which one is chosen. */
export function choices(label, names, chosen, onChoice) {
  return h("div.segmented", { role: "group", "aria-label": label }, names.map((name) => h("button", {
    type: "button", "aria-pressed": String(name === chosen), onclick: () => onChoice(name),
  }, name)));
}
