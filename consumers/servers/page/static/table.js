// One table: what is in it at any version, what happened to it, and how to open it.

import { ask } from "./api.js";
import { ChangesPane } from "./changes.js";
import { FilesPane, OverviewPane, ReferencesPane, UpkeepPane } from "./contents.js";
import { fill, h } from "./dom.js";
import { count, plural, time } from "./format.js";
import { HistoryView } from "./history.js";
import { RowsPane } from "./preview.js";
import { address, change, current } from "./state.js";
import { meant } from "./tables.js";

const PANES = [
  { name: "", word: "Overview", make: OverviewPane },
  { name: "rows", word: "Rows", make: RowsPane },
  { name: "files", word: "Files", make: FilesPane, isLance: true },
  { name: "changes", word: "Changes", make: ChangesPane, isLance: true },
  { name: "names", word: "Indices and tags", make: ReferencesPane },
  { name: "upkeep", word: "Upkeep", make: UpkeepPane, isLance: true },
  { name: "history", word: "History", make: HistoryView },
];
/** Parameters that change nothing of a pane, or that the pane looks after itself. */
const KEPT = new Set(["view", "table", "tx", "id", "p", "q", "only", "from", "to"]);

export class TableView {
  constructor(state) {
    this.name = state.table;
    this.version = h("div.chooser");
    this.facts = h("p.sub");
    this.tabs = h("nav.tabs", { "aria-label": "What of the table" });
    this.pane = h("div.pane");
    this.element = h("div.page.table", {},
      h("div.title", {}, h("h1", {}, this.name), this.facts, this.version), this.tabs, this.pane);
  }

  title() {
    return this.name;
  }

  async start() {
    try {
      this.about = await ask("table", { table: this.name });
    } catch (error) {
      if (error.status !== 404) throw error;
      return this.drawUnknown();
    }
    this.drawFacts();
    await this.onState(current());
  }

  async drawUnknown() {
    const { near } = await ask("near", { table: this.name }).catch(() => ({ near: [] }));
    fill(this.pane, h("div.empty", {}, h("p", { role: "alert" }, `There is no table “${this.name}”, and there never was one.`),
      near.length ? meant(near) : null,
      h("p", {}, h("a", { href: address({}), "data-link": true }, "See all tables"))));
  }

  drawFacts() {
    const { lives, counts } = this.about;
    const [life] = lives;
    const refused = ["retryable", "incompatible", "rejected", "superseded"].reduce((sum, one) => sum + (counts[one] ?? 0), 0);
    fill(this.facts, life?.ended_by ? h("b", {}, `${life.ended_by} at ${time(life.ended_at)} UTC. `) : null,
      `${count(counts.committed ?? 0)} committed · ${count(refused)} refused`,
      life?.former_names?.length ? ` · was ${life.former_names.join(", ")}` : "",
      lives.length > 1 ? ` · ${plural(lives.length, "life", "lives")}` : "");
  }

  get life() {
    return this.about?.lives[0] ?? {};
  }

  get isLance() {
    return this.life.format !== "iceberg";
  }

  /** The version that is looked at; null for the newest. */
  get chosen() {
    return Number(current().v) || null;
  }

  async onState(state) {
    if (!this.about) return;
    const key = JSON.stringify(Object.entries(state).filter(([name]) => !KEPT.has(name)).sort());
    if (key === this.key) return this.inner?.onState?.(state);
    this.key = key;
    const panes = PANES.filter((one) => this.isLance || !one.isLance);
    const chosen = panes.find((one) => one.name === (state.tab ?? "")) ?? panes[0];
    this.drawTabs(panes, chosen);
    this.drawVersion(chosen);
    this.inner?.stop?.();
    const made = new chosen.make(state, this);
    this.inner = made;
    fill(this.pane, made.element);
    if (this.status) made.onStatus?.(this.status, false);
    try {
      await made.start();
    } catch (error) {
      if (this.inner !== made || error.name === "AbortError") return;
      if (error.status === 0) this.redo();
      fill(this.pane, h("p.problem", { role: "alert" }, error.message), this.chosen ? h("p.note", {},
        h("a", { href: address({ ...current(), v: "" }), "data-link": true }, "Show the newest version")) : null);
    }
  }

  /** Have the pane shown again with the server's next status: it didn't answer. */
  redo() {
    this.key = null;
  }

  drawTabs(panes, chosen) {
    const focused = this.tabs.contains(document.activeElement);
    fill(this.tabs, panes.map(({ name, word }) => h("a", {
      href: address({ view: "table", table: this.name, tab: name, v: current().v }), "data-link": true,
      "aria-current": name === chosen.name ? "page" : null,
    }, word)));
    const here = this.tabs.querySelector("[aria-current]");
    here.scrollIntoView?.({ block: "nearest", inline: "nearest" });
    if (focused) here.focus();
  }

  drawVersion(pane) {
    const newest = this.life.version;
    if (!this.isLance || !newest || pane.make === HistoryView || pane.make === UpkeepPane) return fill(this.version);
    const at = this.chosen ?? newest;
    const to = (version) => change({ v: version >= newest ? "" : version });
    const input = h("input", {
      type: "number", min: 1, max: newest, value: at, "aria-label": `Version, of ${newest}`,
      onchange: () => input.value && to(Number(input.value)),
    });
    const step = (by, word, sign) => h("button.quiet", {
      type: "button", "aria-label": word, title: word, disabled: at + by < 1 || at + by > newest, onclick: () => {
        to(at + by);
        this.version.querySelector(`[aria-label="${word}"]`)?.focus();
      },
    }, sign);
    return fill(this.version, "version", step(-1, "The version before", "‹"), input, step(1, "The version after", "›"),
      ` of ${count(newest)}`, this.chosen ? h("a", { href: address({ ...current(), v: "" }), "data-link": true }, "newest") : null);
  }

  async onStatus(status, moved) {
    this.status = status;
    if (this.about && this.key === null) await this.onState(current());
    else if (moved && this.about) {
      const before = this.life.version;
      const about = await ask("table", { table: this.name }).catch(() => this.about);
      this.about = about;
      this.drawFacts();
      if (this.life.version !== before && !this.version.contains(document.activeElement)) {
        this.drawVersion(PANES.find((one) => one.name === (current().tab ?? "")) ?? PANES[0]);
      }
      await this.inner?.onStatus?.(status, this.life.version !== before || this.inner instanceof HistoryView);
    } else await this.inner?.onStatus?.(status, false);
  }

  stop() {
    this.inner?.stop?.();
  }
}

