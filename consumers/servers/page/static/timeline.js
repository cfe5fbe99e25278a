// The timeline: a lane per writer, marks near by and densities from afar, on a canvas.
//
// All events lie in typed columns, so a frame looks at each one in sight once: no tiles, no waiting.

import { h, legible, onceAFrame } from "./dom.js";
import { clock, compact, count, plural, time } from "./format.js";
import { draw, GROUP_OF, GROUPS, KINDS } from "./marks.js";

const LANE = 22;
const LANES_MAX = 9;
const OVERVIEW = 34;
const AXIS = 20;
const BIN = 3;
const MARK = 7;
/** Below so many pixels per event densities are drawn instead of marks. */
const PIXELS_PER_MARK = 3;
const RECENT = 240;
const TAIL_STEPS_MAX = 400;
const ZOOM = 1.35;
const NEAR = 12;

export class Timeline {
  /**
   * `onPick(number)` is told of a chosen event, `onLane(word)` of a chosen lane, `onAxis(name)` of
   * another axis, and `onView([low, high])` of where one has moved to, null for the newest.
   */
  constructor({ events, lanes, axis, label, names, onPick, onLane, onAxis, onView }) {
    Object.assign(this, { events, lanesBy: lanes, axis, names, onPick, onLane, onView });
    this.view = null;
    this.follows = true;
    this.selected = -1;
    this.hovered = -1;
    this.listed = null;
    this.pointers = new Map();
    this.overview = h("canvas.overview", { "aria-hidden": "true" });
    this.canvas = h("canvas.lanes", { "aria-hidden": "true" });
    this.tip = h("div.tip", { hidden: true, "aria-hidden": "true" });
    this.caption = h("p.caption", { role: "status" });
    this.legend = h("ul.legend", { "aria-label": "Events in view" });
    this.axes = h("div.segmented", { role: "group", "aria-label": "Axis" },
      ["time", "position"].map((name) => h("button", {
        type: "button", "aria-pressed": String(name === axis), onclick: () => onAxis(name),
      }, name)));
    const button = (text, name, run) => h("button", { type: "button", "aria-label": name, title: name, onclick: run }, text);
    this.zoomers = h("div.segmented", { role: "group", "aria-label": "Zoom" },
      button("−", "Zoom out", () => this.zoom(1 / ZOOM)), button("+", "Zoom in", () => this.zoom(ZOOM)),
      button("all", "Show all events", () => this.showAll()), button("latest", "Show the latest events", () => this.showLatest()));
    this.plot = h("div.plot", {
      tabIndex: 0, role: "group", "aria-label": `${label}. Arrow keys move, plus and minus zoom, Home and End jump.`,
      onkeydown: (event) => this.key(event),
    }, this.overview, this.canvas, this.tip);
    this.element = h("section.timeline", { "aria-label": "Timeline" },
      h("div.tools", {}, this.legend, this.caption, this.axes, this.zoomers), this.plot);
    this.refresh = onceAFrame(() => this.draw());
    this.listen();
  }

  listen() {
    this.observer = new ResizeObserver(() => this.refresh());
    this.observer.observe(this.plot);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => {
      this.colours = null;
      this.refresh();
    };
    this.scheme.addEventListener("change", this.recolour);
    addEventListener("recolour", this.recolour);
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => this.hover(-1));
    const seek = (event) => {
      if (event.type === "pointerdown") this.overview.setPointerCapture(event.pointerId);
      else if (!event.buttons) return;
      const [low, high] = this.domain();
      const box = this.overview.getBoundingClientRect();
      const place = (event.clientX - box.left - this.gutter) / (box.width - this.gutter);
      const width = this.view[1] - this.view[0];
      const middle = low + place * (high - low);
      this.show(middle - width / 2, middle + width / 2);
    };
    this.overview.addEventListener("pointerdown", seek);
    this.overview.addEventListener("pointermove", seek);
  }

  stop() {
    clearTimeout(this.settling);
    clearTimeout(this.telling);
    this.observer.disconnect();
    this.scheme.removeEventListener("change", this.recolour);
    removeEventListener("recolour", this.recolour);
  }

  get gutter() {
    return this.plot.clientWidth < 560 ? 84 : 148;
  }

  at(number) {
    return this.axis === "time" ? this.events.time[number] : number;
  }

  /** The first event at or after a place on the axis. */
  find(place) {
    const { events } = this;
    if (this.axis === "time") return events.find("time", place);
    return Math.min(Math.max(Math.ceil(place), events.first), events.total);
  }

  domain() {
    const { events } = this;
    if (!events.loaded) return [0, 1];
    const low = this.at(events.first);
    const high = this.at(events.total - 1);
    const margin = Math.max((high - low) * 0.004, this.axis === "time" ? 500 : 1);
    return [low - margin, high + margin];
  }

  showLatest() {
    const { events } = this;
    if (!events.loaded) return;
    this.follows = true;
    const [low, high] = this.domain();
    const start = this.at(Math.max(events.first, events.total - RECENT));
    this.view = [Math.max(low, start - (high - start) * 0.02), high];
    if (this.axis === "time") this.view[1] = this.at(events.total - 1) + (high - start) * 0.01 + 50;
    this.settle(null);
    this.refresh();
  }

  /** Tell where the view is, once it stays there. */
  settle(view) {
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.onView(view), 300);
  }

  showAll() {
    this.show(...this.domain());
    this.followsAll = true;
  }

  show(low, high) {
    this.followsAll = false;
    const [first, last] = this.domain();
    const least = this.axis === "time" ? 20 : 6;
    const width = Math.min(Math.max(high - low, least), last - first);
    const start = Math.min(Math.max(low, first), last - width);
    this.view = [start, start + width];
    this.follows = start + width >= last - width * 0.001;
    this.settle([...this.view]);
    this.refresh();
  }

  zoom(factor, pixel = null) {
    if (!this.view) return;
    const [low, high] = this.view;
    const share = pixel === null ? 0.5 : Math.min(Math.max((pixel - this.gutter) / this.width, 0), 1);
    const fixed = low + (high - low) * share;
    this.show(fixed - (fixed - low) / factor, fixed + (high - fixed) / factor);
  }

  pan(share) {
    if (!this.view) return;
    const [low, high] = this.view;
    this.show(low + (high - low) * share, high + (high - low) * share);
  }

  /** Events came, at either end. */
  changed(came = 0) {
    if (!this.view || (this.follows && came && !this.followsAll)) {
      if (!this.view) this.showLatest();
      else {
        const width = this.view[1] - this.view[0];
        const end = this.domain()[1];
        this.view = [end - width, end];
      }
    }
    if (this.followsAll) this.view = this.domain();
    this.refresh();
  }

  select(number, { reveal = false } = {}) {
    this.selected = number;
    if (reveal && this.view && number >= 0 && this.events.has(number)) {
      const place = this.at(number);
      const [low, high] = this.view;
      if (place < low || place > high) {
        const width = high - low;
        this.show(place - width / 2, place + width / 2);
      }
    }
    this.refresh();
  }

  /** The range of events that the list has in sight. */
  list(first, last) {
    this.listed = [first, last];
    this.refresh();
  }

  key(event) {
    const actions = {
      ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15), "+": () => this.zoom(ZOOM),
      "=": () => this.zoom(ZOOM), "-": () => this.zoom(1 / ZOOM), 0: () => this.showAll(),
      PageUp: () => this.pan(-0.9), PageDown: () => this.pan(0.9), End: () => this.showLatest(),
      Home: () => this.show(this.domain()[0], this.domain()[0] + (this.view[1] - this.view[0])),
    };
    if (event.metaKey || event.ctrlKey || event.altKey || !(event.key in actions) || !this.view) return;
    event.preventDefault();
    actions[event.key]();
  }

  wheel(event) {
    event.preventDefault();
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (sideways || event.shiftKey) this.pan((sideways ? event.deltaX : event.deltaY) / this.width);
    else this.zoom(Math.exp(-event.deltaY / 400), this.pixel(event));
  }

  pixel(event) {
    return event.clientX - this.canvas.getBoundingClientRect().left;
  }

  press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.pixel(event));
    this.moved = 0;
  }

  move(event) {
    const pixel = this.pixel(event);
    const before = this.pointers.get(event.pointerId);
    if (before === undefined) return this.hover(this.nearest(event), event);
    if (this.pointers.size === 2) {
      const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
      this.zoom(Math.abs(pixel - other) / Math.max(Math.abs(before - other), 1), (pixel + other) / 2);
      this.moved = NEAR;
    } else {
      this.moved += Math.abs(pixel - before);
      if (this.moved > 3) this.pan((before - pixel) / this.width);
    }
    this.pointers.set(event.pointerId, pixel);
    return undefined;
  }

  release(event) {
    this.pointers.delete(event.pointerId);
    if (this.moved > 3) return;
    if (this.pixel(event) < this.gutter) {
      const word = this.laneWords[this.laneUnder(event)];
      if (word !== undefined) this.onLane(word);
      return;
    }
    const number = this.nearest(event);
    if (number >= 0) this.onPick(number);
  }

  laneUnder(event) {
    return Math.floor((event.clientY - this.canvas.getBoundingClientRect().top) / LANE);
  }

  /** The event nearest to a pointer: in its lane if there is one near by. */
  nearest(event) {
    if (!this.view || !this.events.loaded) return -1;
    const [low, high] = this.view;
    const scale = this.width / (high - low);
    const pixel = this.pixel(event) - this.gutter;
    if (pixel < 0) return -1;
    const lane = this.laneUnder(event);
    let best = -1;
    let distance = NEAR;
    const until = this.find(low + (pixel + NEAR) / scale);
    for (let n = this.find(low + (pixel - NEAR) / scale); n < until; n += 1) {
      const away = Math.abs((this.at(n) - low) * scale - pixel) + (this.laneOf[this.events[this.lanesBy][n]] === lane ? 0 : NEAR);
      if (away < distance) [best, distance] = [n, away];
    }
    return best;
  }

  hover(number, event = null) {
    if (number === this.hovered && number < 0) return;
    this.hovered = number;
    this.tip.hidden = number < 0;
    if (number >= 0 && event) {
      this.tip.textContent = legible(this.names.tell(number));
      const box = this.plot.getBoundingClientRect();
      const x = Math.min(event.clientX - box.left + 12, box.width - this.tip.offsetWidth - 4);
      this.tip.style.transform = `translate(${Math.max(0, x)}px, ${event.clientY - box.top + 16}px)`;
    }
    this.refresh();
  }

  draw() {
    const { events } = this;
    if (!this.view || !events.loaded || !this.plot.clientWidth) return;
    this.colours ??= palette(this.element);
    this.width = this.plot.clientWidth - this.gutter;
    this.arrange();
    this.drawOverview();
    this.drawLanes();
  }

  /** Who has which lane: the busiest have their own, the others share the last. */
  arrange() {
    const ranking = this.events.ranking(this.lanesBy);
    const most = this.plot.clientWidth < 560 ? 5 : LANES_MAX;
    const own = ranking.length > most ? most - 1 : ranking.length;
    this.laneOf = new Int16Array(this.events.words[this.lanesBy].list.length).fill(own);
    this.laneWords = ranking.slice(0, own).map(([code], lane) => {
      this.laneOf[code] = lane;
      return this.events.words[this.lanesBy].list[code];
    });
    this.laneNames = this.laneWords.map((word) => this.names.lane(word));
    if (ranking.length > own) this.laneNames.push(`${ranking.length - own} others`);
    this.lanes = this.laneNames.length;
  }

  /** Prepare a canvas for its size on this screen; return its context in CSS pixels. */
  sized(canvas, height) {
    const ratio = devicePixelRatio || 1;
    const width = this.plot.clientWidth;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `11px ${this.colours.font}`;
    context.textBaseline = "middle";
    return context;
  }

  /** Count events in bins: per lane (or all in one), bin and group. */
  binned(first, until, low, scale, bins, lanes) {
    const cells = new Uint32Array(lanes * GROUPS.length * bins);
    const { kind, time: times } = this.events;
    const words = this.events[this.lanesBy];
    const byTime = this.axis === "time";
    for (let n = first; n < until; n += 1) {
      const bin = Math.min(bins - 1, Math.max(0, (((byTime ? times[n] : n) - low) * scale) | 0));
      const lane = lanes > 1 ? this.laneOf[words[n]] : 0;
      cells[(lane * GROUPS.length + GROUP_OF[kind[n]]) * bins + bin] += 1;
    }
    return cells;
  }

  /** Draw stacked densities of one lane with their foot at `bottom`. */
  bars(context, cells, lane, bins, left, bottom, height, most) {
    const start = lane * GROUPS.length * bins;
    const totals = new Uint32Array(bins);
    for (let code = 0; code < GROUPS.length; code += 1) {
      for (let bin = 0; bin < bins; bin += 1) totals[bin] += cells[start + code * bins + bin];
    }
    const stacked = new Float32Array(bins);
    GROUPS.forEach((group, code) => {
      context.fillStyle = this.colours[group.colour];
      for (let bin = 0; bin < bins; bin += 1) {
        const n = cells[start + code * bins + bin];
        if (!n) continue;
        // The root keeps what is rare in sight; within a bar the shares are true.
        const bar = Math.max(2.5, Math.min(1, Math.sqrt(totals[bin] / most)) * height);
        const tall = (n / totals[bin]) * bar;
        context.fillRect(left + bin * BIN, bottom - stacked[bin] - tall, BIN - 0.5, tall);
        stacked[bin] += tall;
      }
    });
  }

  drawOverview() {
    const context = this.sized(this.overview, OVERVIEW);
    const [low, high] = this.domain();
    const bins = Math.max(1, Math.floor(this.width / BIN));
    const { events, gutter } = this;
    const key = `${events.first}/${events.total}/${bins}/${this.axis}`;
    if (this.overviewKey !== key) {
      this.overviewKey = key;
      this.overviewCells = this.binned(events.first, events.total, low, bins / (high - low), bins, 1);
      this.overviewMost = Math.max(1, percentile(sums(this.overviewCells, bins, 1), 0.99));
    }
    this.bars(context, this.overviewCells, 0, bins, gutter, OVERVIEW - 4, OVERVIEW - 8, this.overviewMost);
    context.fillStyle = this.colours["--muted"];
    context.fillText(fit(context, `${compact(events.loaded)} events`, gutter - 12), 0, OVERVIEW / 2);
    const scale = this.width / (high - low);
    const left = gutter + (this.view[0] - low) * scale;
    const right = gutter + (this.view[1] - low) * scale;
    context.fillStyle = this.colours["--veil"];
    context.fillRect(gutter, 0, Math.max(0, left - gutter), OVERVIEW);
    context.fillRect(right, 0, Math.max(0, gutter + this.width - right), OVERVIEW);
    context.strokeStyle = this.colours["--accent"];
    context.lineWidth = 1.5;
    context.strokeRect(left, 0.75, Math.max(right - left, 3), OVERVIEW - 1.5);
  }

  drawLanes() {
    const height = this.lanes * LANE + AXIS;
    const context = this.sized(this.canvas, height);
    const { gutter, colours, lanes } = this;
    const [low, high] = this.view;
    const scale = this.width / (high - low);
    const first = this.find(low);
    const until = Math.min(this.find(high) + 1, this.events.total);
    this.drawAxis(context, low, high, scale, lanes * LANE);
    this.laneNames.forEach((name, lane) => {
      context.fillStyle = colours["--line"];
      context.fillRect(0, (lane + 1) * LANE - 1, gutter + this.width, 1);
      context.fillStyle = colours["--muted"];
      context.fillText(fit(context, legible(name), gutter - 12), 0, lane * LANE + LANE / 2);
    });
    context.save();
    context.beginPath();
    context.rect(gutter - 1, 0, this.width + 2, height);
    context.clip();
    if (until - first > this.width / PIXELS_PER_MARK) this.drawDensity(context, first, until, low, scale);
    else this.drawMarks(context, first, until, low, scale);
    this.drawSelection(context, low, scale, lanes * LANE);
    context.restore();
    this.tell(first, until);
  }

  drawDensity(context, first, until, low, scale) {
    const bins = Math.max(1, Math.ceil(this.width / BIN));
    const cells = this.binned(first, until, low, scale / BIN, bins, this.lanes);
    const most = Math.max(2, percentile(sums(cells, bins, this.lanes), 0.98));
    for (let lane = 0; lane < this.lanes; lane += 1) {
      this.bars(context, cells, lane, bins, this.gutter, (lane + 1) * LANE - 2, LANE - 5, most);
    }
  }

  drawMarks(context, first, until, low, scale) {
    const { events, gutter } = this;
    const words = events[this.lanesBy];
    const y = (n) => this.laneOf[words[n]] * LANE + LANE / 2;
    const x = (n) => gutter + (this.at(n) - low) * scale;
    const size = Math.min(MARK + 2, Math.max(MARK, (this.width / (until - first)) * 0.4));
    KINDS.forEach((kind, code) => {
      context.fillStyle = context.strokeStyle = this.colours[kind.colour];
      context.lineWidth = 1;
      for (let n = first; n < until; n += 1) {
        if (events.kind[n] !== code || kind.mark === "dot" || kind.mark === "ring") continue;
        const read = this.whereRead(n);
        if (read < 0) continue;
        context.globalAlpha = 0.55;
        context.beginPath();
        context.moveTo(x(read), y(n));
        context.lineTo(x(n), y(n));
        context.moveTo(x(read), y(n) - 3);
        context.lineTo(x(read), y(n) + 3);
        context.stroke();
        context.globalAlpha = 1;
      }
      context.lineWidth = kind.mark === "bar" ? 3 : 1.8;
      for (let n = first; n < until; n += 1) {
        if (events.kind[n] === code) draw(context, kind, x(n), y(n), size);
      }
    });
  }

  /** The event that made the version which an event had read; -1 if it is not near. */
  whereRead(number) {
    const { events } = this;
    const wanted = events.read_version[number];
    if (wanted <= 0) return -1;
    const least = Math.max(events.first, number - TAIL_STEPS_MAX);
    for (let n = number - 1; n >= least; n -= 1) {
      if (events.version[n] === wanted && events.table[n] === events.table[number]) return n;
    }
    return -1;
  }

  drawSelection(context, low, scale, height) {
    const words = this.events[this.lanesBy];
    const place = (n) => this.gutter + (this.at(n) - low) * scale;
    if (this.listed) {
      const [a, b] = this.listed.map((n) => Math.min(Math.max(n, this.events.first), this.events.total - 1));
      context.fillStyle = this.colours["--accent"];
      context.fillRect(place(a), height - 2, Math.max(place(b) - place(a), 2), 2);
    }
    for (const [number, strong] of [[this.hovered, false], [this.selected, true]]) {
      if (number < 0 || !this.events.has(number)) continue;
      const x = place(number);
      context.strokeStyle = this.colours[strong ? "--accent" : "--muted"];
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, height);
      context.stroke();
      context.lineWidth = 2;
      context.beginPath();
      context.arc(x, this.laneOf[words[number]] * LANE + LANE / 2, MARK, 0, 7);
      context.stroke();
    }
  }

  drawAxis(context, low, high, scale, top) {
    const { colours, gutter } = this;
    const byTime = this.axis === "time";
    const step = niceStep((high - low) / Math.max(2, Math.floor(this.width / 96)), byTime);
    context.textAlign = "center";
    for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) {
      const x = gutter + (tick - low) * scale;
      context.fillStyle = colours["--line"];
      context.fillRect(Math.round(x), 0, 1, top + 4);
      if (x < gutter + 24 || x > gutter + this.width - 28) continue;
      context.fillStyle = colours["--muted"];
      context.fillText(byTime ? tickTime(tick, step) : positionAt(this.events, tick), x, top + 12);
    }
    context.textAlign = "left";
    context.fillStyle = colours["--muted"];
    const day = time(this.events.time[Math.min(this.find(low), this.events.total - 1)]).slice(0, 10);
    context.fillText(byTime ? `${day} UTC` : "position", 0, top + 12);
  }

  /** Say in words and numbers what is in view. */
  tell(first, until) {
    const totals = GROUPS.map(() => 0);
    for (let n = first; n < until; n += 1) totals[GROUP_OF[this.events.kind[n]]] += 1;
    const said = totals.join();
    if (this.said === said) return;
    this.said = said;
    this.legend.replaceChildren(...GROUPS.map((group, code) =>
      h(`li.${group.name}`, {}, h("i", { "aria-hidden": "true" }), `${count(totals[code])} ${group.name}`)));
    clearTimeout(this.telling);
    this.telling = setTimeout(() => {
      this.caption.textContent = `${plural(until - first, "event")} in view`;
    }, 300);
  }
}

/** The style sheet's colours as a canvas takes them: those of the scheme in force. */
function palette(element) {
  const probe = element.appendChild(h("i", { hidden: true }));
  const names = ["--muted", "--line", "--accent", "--veil", ...KINDS.map((kind) => kind.colour)];
  const colours = {};
  for (const name of names) {
    probe.style.color = `var(${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  colours.font = getComputedStyle(element).fontFamily;
  probe.remove();
  return colours;
}

function sums(cells, bins, lanes) {
  const found = [];
  for (let lane = 0; lane < lanes; lane += 1) {
    for (let bin = 0; bin < bins; bin += 1) {
      let n = 0;
      for (let code = 0; code < GROUPS.length; code += 1) n += cells[(lane * GROUPS.length + code) * bins + bin];
      if (n) found.push(n);
    }
  }
  return found;
}

function percentile(values, share) {
  if (!values.length) return 1;
  values.sort((a, b) => a - b);
  return values[Math.min(values.length - 1, Math.floor(values.length * share))];
}

const TIME_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5,
  72e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];

function niceStep(least, byTime) {
  if (byTime && least < TIME_STEPS.at(-1)) return TIME_STEPS.find((step) => step >= least);
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least);
}

function tickTime(ms, step) {
  if (step < 1000) return `${clock(ms)}.${String(Math.floor(ms) % 1000).padStart(3, "0")}`;
  const text = time(ms);
  if (step >= 864e5) return text.slice(5, 10);
  return step < 6e4 ? text.slice(11) : text.slice(11, 16);
}

function positionAt(events, number) {
  const there = Math.min(Math.max(number, events.first), events.total - 1);
  return count(events.sequence[there]);
}

function fit(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let kept = text;
  while (kept && context.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}
