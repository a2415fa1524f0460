// What a token might have been: the likeliest ones with their probabilities, beside the token.

import { element } from "./dom.js";
import { percent, visible } from "./tokens.js";

const GAP = 8; // pixels to the token and to the window's edge

/** The one panel that is shown beside the token that is looked at. */
export class Alternatives {
  constructor(node) {
    this.node = node;
    window.addEventListener("scroll", () => this.hide(), { passive: true, capture: true });
  }

  /** Show the alternatives of a token beside its place in the text. */
  show(place, token) {
    this.node.replaceChildren(headOf(token), ...token.top.map((one) => rowOf(one, token)), ...restOf(token));
    this.node.hidden = false;
    this.#put(place.getClientRects()[0]);
  }

  /** Hide the panel. */
  hide() {
    this.node.hidden = true;
  }

  #put(beside) {
    const { width, height } = this.node.getBoundingClientRect();
    const isAbove = beside.bottom + GAP + height > window.innerHeight && beside.top > height + GAP;
    const left = Math.min(beside.left, window.innerWidth - width - GAP);
    this.node.style.left = `${Math.max(left, GAP)}px`;
    this.node.style.top = `${isAbove ? beside.top - height - GAP : beside.bottom + GAP}px`;
  }
}

function headOf(token) {
  const { logprob } = token;
  const words = logprob === null ? "the first token has no logprob" : `${percent(logprob)} · logprob ${logprob.toFixed(3)}`;
  return element("p", { class: "alternatives-head" }, element("code", {}, visible(token.text)), words);
}

function rowOf([text, logprob], token) {
  const row = element(
    "p",
    { class: text === token.text ? "alternative is-taken" : "alternative" },
    element("code", {}, visible(text)),
    element("span", { class: "share" }, percent(logprob)),
  );
  row.style.setProperty("--share", Math.exp(logprob).toFixed(4));
  return row;
}

/** Return a row for all other tokens together, where there may be any. */
function restOf(token) {
  const rest = 1 - token.top.reduce((sum, [, logprob]) => sum + Math.exp(logprob), 0);
  if (token.top.length === 0 || rest < 0.0005) return [];
  const row = element(
    "p",
    { class: "alternative is-rest" },
    element("span", {}, "all others"),
    element("span", { class: "share" }, percent(Math.log(rest))),
  );
  row.style.setProperty("--share", rest.toFixed(4));
  return [row];
}
