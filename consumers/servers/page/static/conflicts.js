// The conflict map: writer against writer, fragments under contention, and the newest collisions.

import { ask } from "./api.js";
import { fill, h } from "./dom.js";
import { ago, count, plural, writerName } from "./format.js";
import { listing, panel } from "./parts.js";
import { address, change, current } from "./state.js";
import { term } from "./terms.js";
import { badge, transactionLink } from "./transaction.js";

const WRITERS_MAX = 14;
const NEWEST = 100;
const LEVELS = 6;

export class ConflictsView {
  constructor(state) {
    this.state = state;
    this.now = Date.now();
    this.summary = h("p.sub");
    this.choice = h("div.actions");
    this.map = h("section.panel.map", { "aria-label": "Writer against writer" });
    this.side = h("div.side");
    this.newest = h("section.panel.newest", { "aria-label": "Newest collisions" });
    this.element = h("div.page.conflicts", {},
      h("div.title", {}, h("h1", {}, "Conflicts"), this.summary, this.choice),
      h("div.columns", {}, this.map, this.side), this.newest);
  }

  title() {
    return "Conflicts";
  }

  async start() {
    const { table, loser, winner, fragment } = this.state;
    const [found, { collisions }] = await Promise.all([
      ask("conflicts", { table: table || null }),
      ask("collisions", { table: table || null, loser: loser ?? null, winner: winner ?? null, fragment: fragment || null, limit: NEWEST }),
    ]);
    this.draw(found, collisions);
  }

  onStatus(status, moved) {
    this.now = status.now;
    if (!moved || this.busy) return;
    this.busy = true;
    this.start().catch(() => {}).finally(() => {
      this.busy = false;
    });
  }

  stop() {}

  draw(found, collisions) {
    const { table } = this.state;
    fill(this.summary, found.total ? `${plural(found.total, "transaction")} lost to another one` : "No transaction has lost to another one.");
    fill(this.choice, table ? h("button.chip", {
      type: "button", "aria-label": `Show all tables, not only ${table}`, onclick: () => change({ table: "", fragment: "" }),
    }, table, " ×") : null);
    const focused = this.map.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    fill(this.map, h("h2", {}, term("Writer against writer")), matrix(found.pairs, this.state));
    fill(this.side,
      panel("Fragments under contention", bars(found.fragments.slice(0, 16).map((one) => ({
        label: table ? `fragment ${one.fragment}` : `${one.fragment} of ${one.table_name}`, value: one.count,
        note: plural(one.writers, "writer"), href: { table: one.table_name, fragment: one.fragment },
      })), this.state)),
      panel("Rules", bars(found.rules.slice(0, 8).map((one) => ({ label: one.rule, value: one.count, note: one.status })), this.state)),
      table ? null : panel("Tables", bars(found.tables.slice(0, 8).map((one) => ({
        label: one.table_name, value: one.count, href: { table: one.table_name },
      })), this.state)));
    fill(this.newest, h("h2", {}, term("Newest collisions"), chosen(this.state)), this.table(collisions));
    if (focused) this.map.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }

  table(rows) {
    const heads = ["Position", "When", "Outcome", "Table", "Loser", "did", "Winner", "did", "Which fragments", "Rule"];
    return listing(heads, rows.map((row) => [
      transactionLink(row.sequence, row.partition, count(row.sequence)), ago(row.time, this.now), badge(row.status), row.table_name,
      writerName(row.loser), row.operation ?? "", writerName(row.winner),
      h("span", {}, row.winner_operation ?? "", " ", row.winner_sequence
        ? transactionLink(row.winner_sequence, row.partition, `v${count(row.winner_version)}`) : `v${count(row.winner_version)}`),
      row.fragments.slice(0, 6).join(", ") + (row.fragments_count > 6 ? "…" : ""), h("code", {}, row.rule),
    ]), { label: "Newest collisions", none: "None." });
  }
}

function chosen(state) {
  const parts = [];
  if (state.loser !== undefined) parts.push(`${writerName(state.loser)} lost to ${writerName(state.winner)}`);
  if (state.fragment) parts.push(`fragment ${state.fragment}`);
  if (!parts.length) return null;
  return h("button.chip", {
    type: "button", "aria-label": "Show all collisions", onclick: () => change({ loser: null, winner: null, fragment: "" }),
  }, parts.join(", "), " ×");
}

/** Losers down, winners across; the fuller a cell, the more often. */
function matrix(pairs, state) {
  if (!pairs.length) return h("p.note", {}, "No conflicts.");
  const totals = (side) => {
    const sums = new Map();
    for (const pair of pairs) sums.set(pair[side] ?? "", (sums.get(pair[side] ?? "") ?? 0) + pair.count);
    return [...sums].sort((a, b) => b[1] - a[1]);
  };
  const losers = totals("loser");
  const winners = totals("winner");
  const across = winners.slice(0, WRITERS_MAX).map(([name]) => name);
  const down = losers.slice(0, WRITERS_MAX);
  const found = new Map(pairs.map((pair) => [`${pair.loser ?? ""}\n${pair.winner ?? ""}`, pair]));
  const most = Math.max(...pairs.map((pair) => pair.count));
  const cell = (loser, winner) => {
    const pair = found.get(`${loser}\n${winner}`);
    if (!pair) return h("td.none", {}, h("span", { "aria-hidden": "true" }, "·"), h("span.sr", {}, "0"));
    const level = Math.max(1, Math.ceil((Math.log(pair.count + 1) / Math.log(most + 1)) * LEVELS));
    const isChosen = state.loser === loser && state.winner === winner;
    return h(`td.level${level}${isChosen ? ".chosen" : ""}`, {}, h("a", {
      href: address({ ...current(), loser, winner, tx: "" }), "data-link": true,
      title: `${writerName(loser)} lost to ${writerName(winner)} ${count(pair.count)} times`,
      "aria-label": `${writerName(loser)} lost to ${writerName(winner)} ${count(pair.count)} times`,
    }, count(pair.count)));
  };
  const left = Math.max(losers.length, winners.length) - WRITERS_MAX;
  return h("div.scroll", { tabIndex: 0, role: "region", "aria-label": "Writer against writer, as a table" }, h("table.matrix", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, term("lost ↓ to →")), across.map((name) => h("th", { scope: "col" }, h("span", {}, writerName(name)))),
      h("th.sum", { scope: "col" }, h("span", {}, "all")))),
    h("tbody", {}, down.map(([loser, sum]) => h("tr", {}, h("th", { scope: "row" }, writerName(loser)),
      across.map((winner) => cell(loser, winner)), h("td.sum", {}, count(sum)))))),
  left > 0 ? h("p.note", {}, `and ${left} more writers`) : null);
}

/** Labelled bars. */
function bars(rows, state) {
  if (!rows.length) return h("p.note", {}, "None.");
  const most = Math.max(...rows.map((row) => row.value));
  return h("ul.bars", {}, rows.map((row) => {
    const isChosen = row.href?.fragment !== undefined && String(row.href.fragment) === state.fragment;
    const label = row.href
      ? h("a", { href: address({ ...current(), ...row.href, tx: "" }), "data-link": true, title: row.label }, row.label)
      : h("span", { title: row.label }, row.label);
    return h(`li${isChosen ? ".chosen" : ""}`, {}, h("div.label", {}, label, h("span.note", {}, row.note ?? "")),
      h("div.track", { "aria-hidden": "true" }, h("i", { style: { width: `${Math.max(1, (row.value / most) * 100)}%` } })),
      h("span.value", {}, count(row.value)));
  }));
}
