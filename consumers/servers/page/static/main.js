// The frame around the views: navigation, the pulse of the log, light and dark.

import { ask } from "./api.js";
import { ConflictsView } from "./conflicts.js";
import { fill, h, svg } from "./dom.js";
import { ago, count } from "./format.js";
import { HistoryView } from "./history.js";
import { credentials, signOut } from "./key.js";
import { LiveView, rates } from "./live.js";
import { address, current, listen } from "./state.js";
import { SqlView } from "./sql.js";
import { TableView } from "./table.js";
import { TablesView } from "./tables.js";
import { TransactionPanel } from "./transaction.js";

const POLL_MS = 2000;
/** A keeper that reaches Kafka looks at the log every two seconds. */
const LATE_MS = 15000;
const VIEWS = [
  { name: "tables", word: "Tables", make: (state) => new TablesView(state) },
  { name: "log", word: "Log", make: (state) => new HistoryView(state) },
  { name: "conflicts", word: "Conflicts", make: (state) => new ConflictsView(state) },
  { name: "sql", word: "SQL", make: (state) => new SqlView(state) },
  { name: "live", word: "Live", make: () => new LiveView() },
];
const TABLE = { name: "table", make: (state) => new TableView(state) };
/** Parameters that a view looks at while it stays: a change of any other makes it anew. */
const KEPT = new Set(["tx", "id", "p", "q", "only", "from", "to", "sql"]);

const stage = document.getElementById("view");
const panel = new TransactionPanel(document.getElementById("detail"));
let view = null;
let shownKey = null;
let status = null;
/** Whether the last question for the log's state had no answer. */
let away = false;
/** Whether the view couldn't be shown, because the server didn't answer. */
let failed = false;

function viewOf(state) {
  if (state.view === "table" && state.table) return TABLE;
  return VIEWS.find((one) => one.name === state.view) ?? VIEWS[0];
}

async function show(state) {
  const chosen = viewOf(state);
  const key = chosen === TABLE ? `table ${state.table}` : JSON.stringify(Object.entries(state).filter(([name]) => !KEPT.has(name)).sort());
  panel.show(state);
  if (key === shownKey) {
    view?.onState?.(state);
    return;
  }
  shownKey = key;
  failed = false;
  view?.stop();
  const made = chosen.make(state);
  view = made;
  const focused = document.activeElement;
  drawViews(chosen);
  document.title = `${made.title()} – commitlog`;
  stage.setAttribute("aria-label", made.title());
  fill(stage, made.element);
  // The keyboard goes on from the new view, which a screen reader names, not from the page's top.
  if (focused !== document.activeElement) stage.focus({ preventScroll: true });
  if (status) made.onStatus(status, false);
  try {
    await made.start();
    performance.mark?.(`shown:${chosen.name}`);
  } catch (error) {
    if (view !== made || error.name === "AbortError") return;
    failed = away || error.status === 0;
    fill(stage, h("div.page", {}, h("div.title", {}, h("h1", {}, made.title())), h("p.problem", { role: "alert" }, error.message),
      h("p", {}, h("button", { type: "button", onclick: again }, "Try again"))));
  }
}

function again() {
  shownKey = null;
  show(current());
}

function drawViews(chosen) {
  const at = chosen === TABLE ? "tables" : chosen.name;
  fill(document.getElementById("views"), VIEWS.map(({ name, word }) => h("a", {
    href: address({ view: name === "tables" ? "" : name }), "data-link": true, "aria-current": name === at ? "page" : null,
  }, word)));
}

async function poll() {
  if (!document.hidden) {
    try {
      const found = await ask("status");
      const positions = JSON.stringify(found.positions.map((one) => one.sequence));
      // While the server was away, the view may have missed what came.
      const moved = status !== null && (away || positions !== status.key);
      away = false;
      status = { ...found, key: positions };
      drawSignOut();
      drawPulse();
      if (failed) again();
      else await view?.onStatus(status, moved);
    } catch (error) {
      away = true;
      drawSignOut();
      fill(document.getElementById("pulse"), h("span.bad", {}, error.message));
    }
  }
  setTimeout(poll, POLL_MS);
}

function drawPulse() {
  const rate = rates(status);
  const lag = status.positions.reduce((sum, one) => sum + one.lag, 0);
  const decided = status.positions.reduce((sum, one) => sum + one.sequence, 0);
  document.getElementById("log-name").textContent = status.log || "commitlog";
  const recent = rate.all.slice(-31, -1);
  const most = Math.max(1, ...recent);
  const points = recent.map((value, place) => `${(place * 2.5).toFixed(1)},${(15 - (value / most) * 13).toFixed(1)}`).join(" ");
  const last = recent.slice(-5);
  const now = last.reduce((sum, n) => sum + n, 0) / Math.max(last.length, 1);
  fill(document.getElementById("pulse"),
    svg("svg", { viewBox: "0 0 75 16", "aria-hidden": "true" }, svg("polyline", { points })),
    h("span.rate", { title: "Decided per second over the last ten seconds" }, `${now < 10 ? now.toFixed(1) : count(Math.round(now))}/s`),
    h("span.decided", { title: "Transactions decided since the log began" }, `${count(decided)} decided`),
    indexed(lag));
}

function indexed(lag) {
  if (status.behind_ms < LATE_MS) {
    return h(`span.lag${lag ? ".late" : ""}`, { title: "Outcomes that the index lacks" }, lag ? `${count(lag)} behind` : "up to date");
  }
  const why = "Nobody has kept the index since: is `commitlog index` running, and Kafka?";
  return h("span.lag.late", { title: why }, `as of ${ago(status.now - status.behind_ms, status.now)}`);
}

function drawSignOut() {
  const button = document.getElementById("sign-out");
  button.hidden = !Object.keys(credentials()).length;
  button.onclick = signOut;
}

const THEMES = { auto: "light", light: "dark", dark: "auto" };

function setTheme(theme) {
  const button = document.getElementById("theme");
  document.documentElement.dataset.theme = theme;
  button.textContent = { auto: "◐", light: "○", dark: "●" }[theme];
  button.title = `Colours: ${theme}`;
  button.setAttribute("aria-label", `Colours: ${theme}. Change to ${THEMES[theme]}.`);
  button.onclick = () => {
    localStorage.setItem("theme", THEMES[theme]);
    setTheme(THEMES[theme]);
  };
  dispatchEvent(new Event("recolour"));
}

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select");
  if (event.key === "/" && !typing) {
    const search = document.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
});

setTheme(THEMES[localStorage.getItem("theme")] ? localStorage.getItem("theme") : "auto");
listen(show);
show(current());
poll();
