// Questions to the server. Each has a deadline; an error says what the server said.

import { askForKey, credentials, keptKey } from "./key.js";

const DEADLINE_MS = 15_000;
/** The status of an answer to somebody who didn't say who asks, or not so that it is known. */
const UNKNOWN = 401;

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Ask `api/NAME`; parameters that are null are left out. Aborts with `signal`. */
export async function ask(name, parameters = {}, signal = null) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) query.set(key, value);
  }
  for (;;) {
    const shown = keptKey();
    const response = await get(`api/${name}?${query}`, signal);
    if (response.ok) return response.json();
    const body = await response.json().catch(() => ({}));
    const said = String(body.error ?? response.statusText).replace(/^GET \S+: /, "");
    if (response.status !== UNKNOWN) throw new Refused(said, response.status);
    // Another key may have been given while this was on its way.
    if (keptKey() === shown) await askForKey(said);
    signal?.throwIfAborted();
  }
}

async function get(address, signal) {
  const deadline = AbortSignal.timeout(DEADLINE_MS);
  const signals = signal ? AbortSignal.any([signal, deadline]) : deadline;
  try {
    return await fetch(address, { headers: credentials(), signal: signals });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused("The server does not answer.", 0);
  }
}
