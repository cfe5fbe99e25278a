// Who asks, where the server wants to know: a key or a token, kept for this tab alone.

import { h } from "./dom.js";

const KEPT = "key";
/** Three parts of base64url: a JSON Web Token. */
const TOKEN = /^[\w-]+\.[\w-]+\.[\w-]+$/;

let asking = null;

/** The key that was given last, null if none was. */
export function keptKey() {
  return sessionStorage.getItem(KEPT);
}

/** The headers that show who asks. */
export function credentials() {
  const key = keptKey();
  if (!key) return {};
  return TOKEN.test(key) ? { Authorization: `Bearer ${key}` } : { "x-api-key": key };
}

/** Forget the key and begin again. */
export function signOut() {
  sessionStorage.removeItem(KEPT);
  location.reload();
}

/** Ask for a key, once for all questions that need one; `refused` is what the last one was told. */
export function askForKey(refused) {
  asking ??= new Promise((done) => {
    const shown = keptKey() !== null;
    const input = h("input", { id: "key", type: "password", autocomplete: "current-password", required: true });
    if (shown) {
      input.setAttribute("aria-describedby", "key-problem");
      input.setAttribute("aria-invalid", "true");
    }
    const dialog = h("dialog.key", { "aria-labelledby": "key-title" },
      h("form", {
        onsubmit: (event) => {
          event.preventDefault();
          sessionStorage.setItem(KEPT, input.value.trim());
          dialog.close();
          dialog.remove();
          asking = null;
          done();
        },
      },
      h("h2", { id: "key-title" }, "Who asks?"),
      h("p", {}, "This log is shown to those who may read all of it."),
      shown ? h("p.problem", { id: "key-problem", role: "alert" }, refused) : null,
      h("label", { htmlFor: "key" }, "API key or token"), input,
      h("button", { type: "submit" }, "Open")));
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
  return asking;
}
