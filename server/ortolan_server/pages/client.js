// Asking the server, with the key where there is one; what goes wrong becomes one kind of error.
//
// Addresses are relative to the page, so that it also works below a path of a proxy.

import { readKey } from "./key.js";
import { toJson } from "./values.js";

/** A refusal or failure: the status is 0 when there was no answer. */
export class Failure extends Error {
  constructor(status, error, headers = new Headers()) {
    super(error.message);
    this.status = status;
    this.type = error.type;
    this.param = error.param ?? null;
    this.code = error.code ?? null;
    this.requestId = headers.get("x-request-id");
    this.retryAfter = headers.get("retry-after");
  }
}

/** Return the address of a path of the server. */
export function urlOf(path) {
  return new URL(path.replace(/^\//, ""), document.baseURI).href;
}

/** GET a path. Throws Failure. */
export function get(path, signal) {
  return ask(path, { signal, headers: authorization() });
}

/** POST a body as JSON. Throws Failure, or AbortError. */
export function post(path, body, signal) {
  const headers = { "content-type": "application/json", ...authorization() };
  return ask(path, { method: "POST", body: toJson(body), headers, signal });
}

async function ask(path, options) {
  const response = await answerOf(path, options);
  if (response.ok) return response;
  throw new Failure(response.status, await errorOf(response), response.headers);
}

async function answerOf(path, options) {
  try {
    return await fetch(urlOf(path), { cache: "no-store", credentials: "omit", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, { message: "The server does not answer. Is it running?" });
  }
}

async function errorOf(response) {
  try {
    return (await response.json()).error;
  } catch {
    // A proxy in front answers in its own words.
    return { message: `HTTP ${response.status} ${response.statusText}` };
  }
}

function authorization() {
  const key = readKey();
  return key ? { authorization: `Bearer ${key}` } : {};
}
