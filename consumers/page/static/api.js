// Questions to the server. Each has a deadline; an error says what the server said.

const DEADLINE_MS = 15_000;

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
  const deadline = AbortSignal.timeout(DEADLINE_MS);
  const signals = signal ? AbortSignal.any([signal, deadline]) : deadline;
  let response;
  try {
    response = await fetch(`api/${name}?${query}`, { signal: signals });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused("The server does not answer.", 0);
  }
  if (response.ok) return response.json();
  const body = await response.json().catch(() => ({}));
  const said = String(body.error ?? response.statusText).replace(/^GET \S+: /, "");
  throw new Refused(said, response.status);
}
