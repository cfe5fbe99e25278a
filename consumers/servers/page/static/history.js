// What happened to one table, or to all of them: a timeline, and the same events as a list.

import { ask } from "./api.js";
import { fill, h } from "./dom.js";
import { Events } from "./events.js";
import { change as rowChange, count, plural, time, writerName } from "./format.js";
import { GROUPS, GROUP_OF, KINDS } from "./marks.js";
import { Rows } from "./rows.js";
import { change, current, go } from "./state.js";
import { put } from "./tables.js";
import { Timeline } from "./timeline.js";

const COLUMNS = [
  { name: "position", title: "Position", numeric: true },
  { name: "when", title: "Time (UTC)" },
  { name: "status", title: "Outcome" },
  { name: "operation", title: "Operation" },
  { name: "table", title: "Table" },
  { name: "writer", title: "Writer" },
  { name: "read", title: "Read", numeric: true },
  { name: "version", title: "Made", numeric: true },
  { name: "over", title: "Over", numeric: true },
  { name: "change", title: "Rows", numeric: true },
];

export class HistoryView {
  constructor(state) {
    this.table = state.view === "log" ? "" : (state.table ?? "");
    this.partition = Number(state.partition ?? 0);
    this.only = state.only ?? "";
    this.writer = state.writer ?? null;
    this.chosen = Number(state.tx ?? 0);
    this.shown = null;
    const source = this.table ? { table: this.table } : { partition: this.partition };
    this.events = new Events(source, (error) => this.changed(error));
    const columns = this.table ? COLUMNS.filter((one) => one.name !== "table") : COLUMNS;
    this.rows = new Rows({
      label: "Events, newest first", columns,
      draw: (cells, index) => this.drawRow(cells, this.numberAt(index)),
      onOpen: (index) => this.open(this.numberAt(index)),
      onMove: (index) => this.timeline.select(this.numberAt(index), { reveal: true }),
      onScroll: () => this.scrolled(),
    });
    this.names = columns.map((one) => one.name);
    this.timeline = new Timeline({
      events: this.events, lanes: this.table ? "writer" : "table", axis: state.axis ?? "time",
      label: this.table ? `Timeline of ${this.table} by writer` : "Timeline of the log by table",
      names: { lane: (word) => word || "(none)", tell: (number) => this.tell(number) },
      onPick: (number) => this.pick(number),
      onLane: (word) => this.choose(word),
      onView: (view) => this.restore || change({ from: view ? Math.floor(view[0]) : "", to: view ? Math.ceil(view[1]) : "" }, { quiet: true }),
      onAxis: (axis) => change({ axis: axis === "time" ? "" : axis, from: "", to: "" }),
    });
    this.facts = h("p.sub");
    this.problem = h("p.problem", { role: "alert", hidden: true });
    this.filters = h("div.actions");
    this.element = h(`div.page.history.${this.table ? "one" : "all"}`, {},
      h("div.title", {}, this.table ? null : h("h1", {}, "Log"), this.facts, this.filters),
      this.problem, this.timeline.element, this.rows.element);
    this.drawFilters();
  }

  title() {
    return this.table || "Log";
  }

  async start() {
    const { from, to } = current();
    if (from && to) this.restore = [Number(from), Number(to)];
    if (!this.table) this.drawLogFacts();
    await this.events.load();
  }

  /** Keep to one writer; a lane of the whole log leads to its table. */
  choose(word) {
    if (this.table) change({ writer: word });
    else if (word && !/^\d+ tables$/.test(word)) go({ view: "table", table: word });
  }

  drawLogFacts() {
    fill(this.facts, "Every decided transaction, refused ones too", this.partition ? `, of partition ${this.partition}` : "");
  }

  drawFilters() {
    const choices = [["", "all"], ...GROUPS.slice(1).map((group) => [group.name, group.name])];
    fill(this.filters,
      this.writer !== null ? h("button.chip", {
        type: "button", "aria-label": `Show all writers, not only ${writerName(this.writer)}`,
        onclick: () => change({ writer: null }),
      }, writerName(this.writer), " ×") : null,
      h("div.segmented", { role: "group", "aria-label": "List" }, choices.map(([name, word]) => h("button", {
        type: "button", "aria-pressed": String(this.only === name), onclick: () => change({ only: name }, { quiet: true }) ?? this.filter(name),
      }, word))));
  }

  filter(only) {
    this.only = only;
    this.drawFilters();
    this.sift();
    this.rows.cursor = -1;
    this.rows.element.scrollTop = 0;
    this.rows.resize(this.length);
  }

  /** Find the events that the list shows; null for all. */
  sift() {
    if (!this.only && this.writer === null) {
      this.shown = null;
      return;
    }
    const { events } = this;
    const group = this.only ? GROUPS.findIndex((one) => one.name === this.only) : -1;
    const writer = this.writer === null ? -1 : (events.words.writer.codes.get(this.writer) ?? -2);
    const found = [];
    for (let n = events.first; n < events.total; n += 1) {
      if ((group < 0 || GROUP_OF[events.kind[n]] === group) && (writer === -1 || events.writer[n] === writer)) found.push(n);
    }
    this.shown = found;
  }

  get length() {
    return this.shown ? this.shown.length : this.events.total;
  }

  numberAt(index) {
    return this.shown ? this.shown[this.shown.length - 1 - index] : this.events.total - 1 - index;
  }

  indexOf(number) {
    if (!this.shown) return this.events.total - 1 - number;
    const place = this.shown.indexOf(number);
    return place < 0 ? -1 : this.shown.length - 1 - place;
  }

  changed(error = null) {
    if (error) {
      this.problem.hidden = false;
      fill(this.problem, `Older events could not be loaded: ${error.message}`);
      return;
    }
    const came = this.known === undefined ? 0 : this.events.total - this.known;
    this.known = this.events.total;
    const before = this.shown?.length;
    this.sift();
    this.rows.resize(this.length, this.shown ? (came ? this.shown.length - before : 0) : came);
    this.timeline.changed(came);
    if (this.restore && (this.events.first === 0 || this.timeline.at(this.events.first) <= this.restore[0])) {
      this.timeline.show(...this.restore);
      this.restore = null;
    }
    if (this.chosen) this.follow(this.chosen);
  }

  /** Put list and timeline on a position as soon as it is loaded. */
  follow(sequence) {
    const number = this.events.find("sequence", sequence);
    if (!this.events.has(number) || this.events.sequence[number] !== sequence) return;
    this.chosen = 0;
    const index = this.indexOf(number);
    if (index >= 0) this.rows.select(index, { tell: false });
    this.timeline.select(number, { reveal: true });
  }

  onState(state) {
    const sequence = Number(state.tx ?? 0);
    if (!sequence) this.timeline.select(-1);
    else if (this.events.sequence[this.timeline.selected] !== sequence) this.follow((this.chosen = sequence));
  }

  async onStatus(status, moved) {
    if (moved && this.events.total) await this.events.loadNewer().catch(() => {});
  }

  stop() {
    this.events.stop();
    this.rows.stop();
    this.timeline.stop();
  }

  pick(number) {
    const index = this.indexOf(number);
    if (index >= 0) this.rows.select(index, { tell: false });
    this.timeline.select(number);
    this.open(number);
  }

  open(number) {
    if (!this.events.has(number)) return;
    this.timeline.select(number);
    change({ tx: this.events.sequence[number], id: "", p: this.partitionOf() });
  }

  partitionOf() {
    return this.partition || "";
  }

  scrolled() {
    if (!this.events.loaded || !this.length) return;
    const [first, last] = this.rows.range;
    this.timeline.list(this.numberAt(Math.max(last, 0)), this.numberAt(first));
  }

  tell(number) {
    const { events } = this;
    const made = events.version[number] > 0 ? ` → version ${count(events.version[number])}` : "";
    const over = events.rebased_over[number] > 0 ? `, over ${events.rebased_over[number]}` : "";
    const code = events.word("code", number);
    return `${count(events.sequence[number])}  ${events.word("operation", number)}${made}${over}\n` +
      `${KINDS[events.kind[number]].word}${code ? ` (${code})` : ""} · ${writerName(events.word("writer", number))}\n` +
      time(events.time[number], true);
  }

  drawRow(cells, number) {
    const { events } = this;
    if (!events.has(number)) {
      cells.forEach((cell, place) => put(cell, place ? "" : "…"));
      return " waiting";
    }
    const kind = KINDS[events.kind[number]];
    const none = (value) => (value > 0 ? count(value) : "");
    const texts = {
      position: count(events.sequence[number]), when: time(events.time[number], true).slice(5), status: kind.word,
      operation: events.word("operation", number), table: events.word("table", number),
      writer: writerName(events.word("writer", number)), read: none(events.read_version[number]),
      version: none(events.version[number]), over: none(events.rebased_over[number]),
      change: rowChange(Math.max(events.rows_added[number], 0), Math.max(events.rows_removed[number], 0)),
    };
    this.names.forEach((name, place) => put(cells[place], texts[name]));
    return ` ${kind.name}`;
  }
}
