// What is looked at stands in the address: a link to it shows the same to somebody else.

const listeners = new Set();

/** The present state: the address's parameters as a plain object. */
export function current() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

/** Names of writers may be empty; of other parameters that means "none". */
const WRITERS = new Set(["loser", "winner", "writer"]);

/** The address of a state; parameters that are null or empty are left out. */
export function address(state) {
  const kept = Object.entries(state).filter(([name, value]) => value != null && (value !== "" || WRITERS.has(name)));
  const query = new URLSearchParams(kept).toString();
  return query ? `?${query}` : location.pathname;
}

/** Go to a state, as a link does; with `quiet` neither a step back nor listeners come of it. */
export function go(state, { quiet = false } = {}) {
  const target = address(state);
  if (new URL(target, location.href).href === location.href) return;
  if (quiet) history.replaceState(null, "", target);
  else {
    history.pushState(null, "", target);
    tell();
  }
}

/** Change a few parameters of the present state. */
export function change(parts, options) {
  go({ ...current(), ...parts }, options);
}

/** Run `listener` with each new state. */
export function listen(listener) {
  listeners.add(listener);
}

function tell() {
  for (const listener of listeners) listener(current());
}

addEventListener("popstate", tell);
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-link]");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey;
  if (!link || !plain || event.defaultPrevented) return;
  event.preventDefault();
  go(Object.fromEntries(new URL(link.href).searchParams));
});
