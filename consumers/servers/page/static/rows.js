// A list of any length of which only the rows in sight exist: a grid for keyboards and readers.

import { h, onceAFrame } from "./dom.js";
import { term } from "./terms.js";

const OVERSCAN = 6;
/** Browsers lay nothing out beyond some tens of millions of pixels; longer lists are scaled. */
const HEIGHT_MAX = 8_000_000;

let lists = 0;

export class Rows {
  /**
   * `columns`: [{name, title, numeric}]; `draw(cells, index)` writes texts into a row's cells and may
   * return a class; `onOpen(index)` is told of Enter and clicks, `onMove(index)` of the cursor,
   * `onScroll()` of the range in sight. Of a tree, `level(index)` tells {depth, open}, open being
   * null for a leaf, and `onTurn(index, open)` is told of the arrows that open and close.
   */
  constructor({ label, columns, draw, onOpen, onMove = () => {}, onScroll = () => {}, rowHeight = 26, level = null, onTurn = () => {} }) {
    Object.assign(this, { columns, drawRow: draw, onOpen, onMove, onScroll, rowHeight, level, onTurn });
    this.id = `rows-${(lists += 1)}`;
    this.count = 0;
    this.cursor = -1;
    this.pool = [];
    this.head = h("div.row.head", { role: "row", "aria-rowindex": 1 },
      columns.map((one) => h(`span.cell.${one.name}${one.numeric ? ".numeric" : ""}`, { role: "columnheader" }, term(one.title))));
    this.sizer = h("div.sizer", { role: "presentation" });
    this.body = h("div.window", { role: "rowgroup" });
    this.scroller = h("div.rows", {
      role: level ? "treegrid" : "grid", tabIndex: 0, "aria-label": label,
      onscroll: () => this.refresh(), onkeydown: (event) => this.key(event),
      onclick: (event) => this.click(event),
    }, h("div.headgroup", { role: "rowgroup" }, this.head), this.sizer, this.body);
    this.element = this.scroller;
    this.refresh = onceAFrame(() => this.draw());
    this.observer = new ResizeObserver(() => this.refresh());
    this.observer.observe(this.scroller);
  }

  stop() {
    this.observer.disconnect();
  }

  /** Take a new length; `added` rows came at the top, and what is in sight stays where it is. */
  resize(count, added = 0) {
    this.count = count;
    const height = count * this.rowHeight;
    this.scale = height > HEIGHT_MAX ? height / HEIGHT_MAX : 1;
    this.sizer.style.height = `${Math.min(height, HEIGHT_MAX)}px`;
    this.scroller.setAttribute("aria-rowcount", count + 1);
    if (added && this.scroller.scrollTop > 0) {
      if (this.cursor >= 0) this.cursor += added;
      this.scroller.scrollTop += (added * this.rowHeight) / this.scale;
    } else if (added && this.cursor >= 0) this.cursor += added;
    this.refresh();
  }

  /** The first and last row in sight. */
  get range() {
    const top = this.scroller.scrollTop * (this.scale ?? 1);
    const first = Math.floor(top / this.rowHeight);
    const shown = Math.ceil((this.scroller.clientHeight - this.head.offsetHeight) / this.rowHeight);
    return [Math.min(first, Math.max(this.count - 1, 0)), Math.min(first + shown, this.count - 1)];
  }

  /** Put the cursor on a row; bring it into sight, or into the middle if it was far away. */
  select(index, { tell = true } = {}) {
    if (!this.count) return;
    this.cursor = Math.max(0, Math.min(index, this.count - 1));
    const [first, last] = this.range;
    if (this.cursor <= first || this.cursor >= last - 1) {
      const far = this.cursor < first - 2 || this.cursor > last + 2;
      const shown = Math.max(last - first, 1);
      const top = far ? this.cursor - shown / 2 : this.cursor <= first ? this.cursor : this.cursor - shown + 2;
      this.scroller.scrollTop = (Math.max(0, top) * this.rowHeight) / this.scale;
    }
    this.refresh();
    if (tell) this.onMove(this.cursor);
  }

  draw() {
    const [first, last] = this.range;
    const from = Math.max(0, first - OVERSCAN);
    const until = Math.min(this.count - 1, last + OVERSCAN);
    const needed = Math.max(0, until - from + 1);
    while (this.pool.length < needed) this.pool.push(this.makeRow());
    const top = this.scroller.scrollTop;
    const start = this.scale > 1 ? top - (top * this.scale - from * this.rowHeight) : from * this.rowHeight;
    this.body.style.transform = `translateY(${start}px)`;
    this.pool.forEach((row, place) => {
      const used = place < needed;
      if (row.element.hidden === used) row.element.hidden = !used;
      if (used) this.fillRow(row, from + place);
    });
    if (this.cursor >= from && this.cursor <= until) {
      this.scroller.setAttribute("aria-activedescendant", `${this.id}-${this.cursor - from}`);
    } else this.scroller.removeAttribute("aria-activedescendant");
    this.onScroll();
  }

  makeRow() {
    const cells = this.columns.map((one) =>
      h(`span.cell.${one.name}${one.numeric ? ".numeric" : ""}`, { role: "gridcell" }, ""));
    const element = h("div.row", { role: "row", id: `${this.id}-${this.pool.length}` }, cells);
    element.style.height = `${this.rowHeight}px`;
    this.body.append(element);
    return { element, cells };
  }

  fillRow(row, index) {
    const { element, cells } = row;
    row.index = index;
    element.setAttribute("aria-rowindex", index + 2);
    const extra = this.drawRow(cells, index) ?? "";
    const name = `row ${extra}${index === this.cursor ? " cursor" : ""}`;
    if (element.className !== name) element.className = name;
    const selected = String(index === this.cursor);
    if (element.getAttribute("aria-selected") !== selected) element.setAttribute("aria-selected", selected);
    if (this.level) this.setLevel(row, this.level(index));
  }

  setLevel({ element, cells }, { depth, open }) {
    element.setAttribute("aria-level", depth + 1);
    if (open === null) element.removeAttribute("aria-expanded");
    else element.setAttribute("aria-expanded", String(open));
    cells[0].style.paddingLeft = `${depth * 16 + 16}px`;
  }

  click(event) {
    const target = event.target.closest(".row");
    const row = this.pool.find((one) => one.element === target);
    if (!row || event.target.closest("a")) return;
    this.cursor = row.index;
    this.refresh();
    this.onMove(row.index);
    this.onOpen(row.index);
  }

  key(event) {
    const [first, last] = this.range;
    const page = Math.max(1, last - first - 1);
    const steps = {
      ArrowDown: this.cursor + 1, ArrowUp: this.cursor - 1, PageDown: this.cursor + page,
      PageUp: this.cursor - page, Home: 0, End: this.count - 1,
    };
    if (event.key === "Enter" && this.cursor >= 0) this.onOpen(this.cursor);
    else if (this.level && this.cursor >= 0 && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
      this.onTurn(this.cursor, event.key === "ArrowRight");
    }
    else if (event.key in steps && !event.metaKey && !event.ctrlKey && !event.altKey) {
      this.select(this.cursor < 0 && event.key.startsWith("Arrow") ? first : steps[event.key]);
    } else return;
    event.preventDefault();
  }
}
