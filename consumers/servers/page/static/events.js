// Events of one table, or of the whole log, in typed columns: a hundred thousand in a few megabytes.
//
// Events are numbered from the oldest, 0, so a number never changes while older ones are still being
// loaded, newest first, and new ones arrive at the end.

import { ask } from "./api.js";
import { codeOf } from "./marks.js";

const FIRST_PAGE = 256;
const PAGE = 4096;
const EVENTS_MAX = 1_000_000;
const SPARE = 4096;

/** What an event tells, and how it is stored; -1 stands for "none" in whole numbers. */
const COLUMNS = {
  sequence: Float64Array, ordinal: Uint16Array, time: Float64Array, version: Int32Array,
  read_version: Int32Array, rebased_over: Int32Array, rows_added: Float64Array, rows_removed: Float64Array,
};
const WORDS = ["status", "operation", "writer", "table", "code"];

export class Events {
  /** Take whose events they are ({table} or {partition}), and whom to tell of changes. */
  constructor(source, onChange) {
    this.source = source;
    this.total = 0;
    this.first = 0; // the oldest one that is loaded
    this.left = 0; // older ones that are not loaded at all
    this.words = Object.fromEntries(WORDS.map((name) => [name, { list: [], codes: new Map() }]));
    this.counts = new Map(); // events per writer or table, by word
    this.onChange = onChange;
    this.stopped = new AbortController();
    this.reserve(SPARE);
  }

  stop() {
    this.stopped.abort();
  }

  get loaded() {
    return this.total - this.first;
  }

  /** Load the newest page, then, in the background, all others. */
  async load() {
    const page = await this.ask({ limit: FIRST_PAGE });
    this.left = Math.max(0, page.total - EVENTS_MAX);
    const total = page.total - this.left;
    this.reserve(total + SPARE);
    this.total = this.first = total;
    this.prepend(page);
    this.onChange();
    this.background = this.loadOlder(page.is_last);
  }

  /** Take what was decided since; return how many events came. */
  async loadNewer() {
    if (!this.total) return 0;
    let came = 0;
    for (;;) {
      const last = this.total - 1;
      const page = await this.ask({ after: this.place(last), limit: PAGE });
      this.append(page);
      came += page.rows;
      if (page.is_last) break;
    }
    if (came) this.onChange();
    return came;
  }

  has(number) {
    return number >= this.first && number < this.total;
  }

  /** The number of the first event at or after a value of a column that never falls. */
  find(column, value, low = this.first, high = this.total) {
    const values = this[column];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  word(column, number) {
    return this.words[column].list[this[column][number]];
  }

  async loadOlder(done) {
    try {
      while (!done && this.first > 0) {
        const page = await this.ask({ before: this.place(this.first), limit: PAGE });
        this.prepend(page);
        done = page.is_last;
        this.onChange();
      }
    } catch (error) {
      if (!this.stopped.signal.aborted) this.onChange(error);
    }
  }

  place(number) {
    return `${this.sequence[number]}.${this.ordinal[number]}`;
  }

  ask(parameters) {
    return ask("events", { ...this.source, ...parameters }, this.stopped.signal);
  }

  prepend(page) {
    const rows = Math.min(page.rows, this.first);
    this.first -= rows;
    this.take(page, rows, (row) => this.first + rows - 1 - row);
  }

  append(page) {
    this.reserve(this.total + page.rows);
    const start = this.total;
    this.total += page.rows;
    this.take(page, page.rows, (row) => start + row);
  }

  take(page, rows, numberOf) {
    const { columns, words } = page;
    for (const name of Object.keys(COLUMNS)) {
      const from = columns[name] ?? [];
      const into = this[name];
      for (let row = 0; row < rows; row += 1) into[numberOf(row)] = from[row] ?? -1;
    }
    for (const name of WORDS) {
      const known = this.words[name];
      const codes = (words[name] ?? []).map((word) => codeFor(known, word ?? ""));
      const from = columns[name] ?? [];
      const into = this[name];
      const counts = known.list.map((_, code) => this.counts.get(`${name}/${code}`) ?? 0);
      for (let row = 0; row < rows; row += 1) counts[(into[numberOf(row)] = codes[from[row]])] += 1;
      counts.forEach((n, code) => this.counts.set(`${name}/${code}`, n));
    }
    for (let row = 0; row < rows; row += 1) {
      const number = numberOf(row);
      this.kind[number] = codeOf(this.word("status", number), this.rebased_over[number]);
    }
  }

  /** Words of a column by how often they occur, most often first: [code, count]. */
  ranking(column) {
    return this.words[column].list
      .map((_, code) => [code, this.counts.get(`${column}/${code}`) ?? 0])
      .sort((a, b) => b[1] - a[1]);
  }

  reserve(size) {
    if (this.kind && size <= this.kind.length) return;
    const room = Math.ceil(size * 1.1) + SPARE;
    const grown = (kind, old) => {
      const made = new kind(room);
      if (old) made.set(old.subarray(0, Math.min(old.length, room)));
      return made;
    };
    for (const [name, kind] of Object.entries(COLUMNS)) this[name] = grown(kind, this[name]);
    for (const name of WORDS) this[name] = grown(Uint16Array, this[name]);
    this.kind = grown(Uint8Array, this.kind);
  }
}

function codeFor(known, word) {
  let code = known.codes.get(word);
  if (code === undefined) {
    code = known.list.push(word) - 1;
    known.codes.set(word, code);
  }
  return code;
}
