// What happens now: rates, how far the index is behind, who leads, and who writes.

import { ask } from "./api.js";
import { fill, h, svg } from "./dom.js";
import { ago, compact, count, plural, writerName } from "./format.js";
import { listing, tile } from "./parts.js";
import { address } from "./state.js";
import { badge } from "./transaction.js";

const WIDTH = 960;
const HEIGHT = 140;

export class LiveView {
  constructor() {
    this.tiles = h("div.tiles");
    this.chart = h("div.chart");
    this.partitions = h("section.panel", { "aria-label": "Partitions" });
    this.totals = h("section.panel", { "aria-label": "Outcomes" });
    this.writers = h("section.panel", { "aria-label": "Writers" });
    this.element = h("div.page.live", {},
      h("div.title", {}, h("h1", {}, "Live"), h("p.sub", {}, "As of the newest published index")),
      this.tiles, h("section.panel", { "aria-label": "Rate" }, h("h2", {}, "Decided per second, last two minutes"), this.chart),
      h("div.columns", {}, this.partitions, this.totals), this.writers);
  }

  title() {
    return "Live";
  }

  async start() {
    const found = await ask("live");
    this.found = found;
    this.draw();
  }

  onStatus(status, moved) {
    this.status = status;
    this.draw();
    if (moved) this.start().catch(() => {});
  }

  stop() {}

  draw() {
    if (this.status) this.drawStatus(this.status);
    if (this.found && this.status) this.drawFound(this.found, this.status);
  }

  drawStatus(status) {
    const rate = rates(status);
    const lag = status.positions.reduce((sum, one) => sum + one.lag, 0);
    const decided = status.positions.reduce((sum, one) => sum + one.sequence, 0);
    const changed = Math.max(...status.positions.map((one) => one.changed_at ?? 0));
    const last = rate.all.slice(-6, -1);
    const now = last.length ? last.reduce((sum, n) => sum + n, 0) / last.length : 0;
    fill(this.tiles,
      tile("decided", compact(decided), `in ${plural(status.positions.length, "partition")}`),
      tile("per second", now < 10 ? now.toFixed(1) : count(Math.round(now)), "over the last ten seconds"),
      tile("index behind", count(lag), lag === 1 ? "outcome" : "outcomes"),
      tile("last decision", changed ? ago(changed, status.now) : "–", "by log time"));
    fill(this.chart, chart(rate, status.now));
  }

  drawFound(found, status) {
    const leaderOf = (partition) => found.leaders.find((one) => one.partition === partition);
    fill(this.partitions, h("h2", {}, "Partitions"), listing(["Partition", "Position", "Behind", "Leader", "Term", "Since"],
      status.positions.map((one) => {
        const leader = leaderOf(one.partition);
        return [h("a", { href: address({ view: "log", partition: one.partition || "" }), "data-link": true }, String(one.partition)),
          count(one.sequence), count(one.lag), leader?.node ?? "–", leader ? count(leader.epoch) : "–",
          leader ? `position ${count(leader.sequence)}` : "–"];
      })));
    const sum = found.totals.reduce((all, one) => all + one.count, 0);
    fill(this.totals, h("h2", {}, "Outcomes"), listing(["Outcome", "Transactions", "Share"],
      found.totals.map((one) => [badge(one.status), count(one.count), `${((one.count / sum) * 100).toFixed(1)} %`])));
    fill(this.writers, h("h2", {}, "Writers"), listing(
      ["Writer", "Transactions", "Committed", "Rebased", "Retryable", "Incompatible", "Rejected", "Rows added", "Seen"],
      found.writers.map((one) => [h("a", {
        href: address({ view: "log", writer: one.writer }), "data-link": true,
      }, writerName(one.writer)), count(one.transactions), count(one.committed), count(one.rebased),
        count(one.retryable), count(one.incompatible), count(one.rejected), compact(one.rows_added), ago(one.last_seen, status.now)])));
  }
}

/** Per second and bucket: all, and those refused. */
export function rates(status) {
  const { since, bucket_ms: width, buckets } = status.rates;
  const seconds = width / 1000;
  const size = Math.max(1, Math.floor((status.now - since) / width) + 1);
  const all = new Array(size).fill(0);
  const refused = new Array(size).fill(0);
  for (const one of buckets) {
    const place = Math.round((one.time - since) / width);
    if (place < 0 || place >= size) continue;
    all[place] = (one.committed + one.refused) / seconds;
    refused[place] = one.refused / seconds;
  }
  return { all, refused, since, width };
}

function chart(rate, now) {
  const most = Math.max(1, ...rate.all);
  const step = WIDTH / rate.all.length;
  const area = (values) => {
    const points = values.map((value, place) => `${(place * step).toFixed(1)},${(HEIGHT - (value / most) * (HEIGHT - 16)).toFixed(1)}`);
    return `M0,${HEIGHT} L${points.join(" L")} L${((values.length - 1) * step).toFixed(1)},${HEIGHT} Z`;
  };
  const words = `Up to ${count(Math.round(most))} transactions per second; ${count(Math.round(Math.max(...rate.refused)))} refused at most`;
  return [h("span.most", {}, `${count(Math.round(most))}/s`),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": words },
      svg("path", { d: area(rate.all), class: "all" }), svg("path", { d: area(rate.refused), class: "refused" })),
    h("p.axis", {}, h("span", {}, ago(rate.since, now)), h("span", {}, "now")),
    h("ul.legend", {}, h("li.committed", {}, h("i", { "aria-hidden": "true" }), "decided"), h("li.refused", {}, h("i", { "aria-hidden": "true" }), "refused"))];
}
