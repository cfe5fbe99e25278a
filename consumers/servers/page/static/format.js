// Numbers, times and names as people read them.

const integers = new Intl.NumberFormat("en-US");
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "–" : integers.format(value));
export const compact = (value) => (value === null || value === undefined ? "–" : short.format(value));
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** A writer's name; some don't say who they are. */
export const writerName = (name) => (name?.trim() ? name : "(unnamed)");

/** Bytes, in powers of 1024. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

const two = (n) => String(n).padStart(2, "0");

/** A time in UTC, to the second, or to the millisecond. */
export function time(ms, precise = false) {
  if (ms === null || ms === undefined) return "–";
  const text = new Date(ms).toISOString().replace("T", " ");
  return precise ? text.slice(0, 23) : text.slice(0, 19);
}

/** The time of day in UTC, and the day only where it differs from the one before. */
export function clock(ms) {
  const at = new Date(ms);
  return `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}:${two(at.getUTCSeconds())}`;
}

/** How long ago, or how long it took, in one unit. */
export function span(ms) {
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 1) return `${Math.round(Math.abs(ms))} ms`;
  const steps = [[60, 1, "s"], [3600, 60, "min"], [86_400, 3600, "h"], [Infinity, 86_400, "d"]];
  const [, unit, name] = steps.find(([limit]) => seconds < limit);
  const value = seconds / unit;
  return `${value < 10 && unit === 1 ? value.toFixed(1) : Math.floor(value)} ${name}`;
}

export const ago = (ms, now) => (ms === null ? "–" : now - ms < 1000 ? "now" : `${span(now - ms)} ago`);

/** Rows added and removed, as +12 −3. */
export function change(added, removed) {
  const parts = [];
  if (added) parts.push(`+${compact(added)}`);
  if (removed) parts.push(`−${compact(removed)}`);
  return parts.join(" ");
}
