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
  return answer(`api/${name}?${query}`, {}, signal);
}

/** Ask by POST, as any client of the server may: an address relative to the page, and a body. */
export async function post(address, body, signal = null) {
  const headers = { "Content-Type": "application/json" };
  return answer(address, { method: "POST", body: JSON.stringify(body), headers }, signal);
}

async function answer(address, request, signal) {
  for (;;) {
    const shown = keptKey();
    const response = await get(address, request, signal);
    if (response.ok) return response.json();
    const body = await response.json().catch(() => ({}));
    const said = String(body.error ?? response.statusText).replace(/^(GET|POST) \S+: /, "");
    if (response.status !== UNKNOWN) throw new Refused(said, response.status);
    // Another key may have been given while this was on its way.
    if (keptKey() === shown) await askForKey(said);
    signal?.throwIfAborted();
  }
}

async function get(address, request, signal) {
  const deadline = AbortSignal.timeout(DEADLINE_MS);
  const signals = signal ? AbortSignal.any([signal, deadline]) : deadline;
  try {
    return await fetch(address, { ...request, headers: { ...request.headers, ...credentials() }, signal: signals });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused("The server does not answer.", 0);
  }
}
