// The API key: kept for this tab until it is closed, and nowhere else.

import { byId } from "./dom.js";

const NAME = "ortolan-key";

/** Return the key, "" when there is none. */
export function readKey() {
  return storage()?.getItem(NAME) ?? "";
}

/** Wire the dialog; `changed` is called when there is another key or none. */
export function setUpKey(changed) {
  const [dialog, input] = [byId("key-dialog"), byId("key-input")];
  byId("key-button").addEventListener("click", () => askForKey());
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault(); // the page sends no form
    keep(input.value.trim());
    dialog.close();
    changed();
  });
  byId("key-forget").addEventListener("click", () => {
    keep("");
    dialog.close();
    changed();
  });
  byId("key-cancel").addEventListener("click", () => dialog.close());
  showState();
}

/** Open the dialog, with a sentence that says why. */
export function askForKey(why = "") {
  const dialog = byId("key-dialog");
  byId("key-why").textContent = why;
  byId("key-input").value = readKey();
  byId("key-forget").hidden = readKey() === "";
  if (!dialog.open) dialog.showModal();
  byId("key-input").select();
}

/** Return the tab's storage, null in a browser that forbids it. */
function storage() {
  try {
    return window.sessionStorage;
  } catch {
    return null;
  }
}

function keep(key) {
  if (key) storage()?.setItem(NAME, key);
  else storage()?.removeItem(NAME);
  showState();
}

function showState() {
  byId("key-button").textContent = readKey() ? "Key set" : "Set key";
}
