// The tokens of a text, coloured by how surprising each was; the arrow keys go from one to the next.

import { element } from "./dom.js";

const LEAST_SHOWN = 0.02; // a share below it is coloured as much as one can be

/** A list of tokens that grows; `alternatives` is told which one is looked at. */
export class TokenList {
  #tokens = [];

  constructor(alternatives) {
    this.alternatives = alternatives;
    this.node = element("div", {
      class: "tokens",
      role: "listbox",
      "aria-orientation": "horizontal",
      "aria-label": "Tokens and their probabilities",
    });
    this.#listen();
  }

  /** Show the tokens that are not shown yet. */
  update(tokens) {
    const added = tokens.slice(this.#tokens.length);
    this.#tokens.push(...added);
    this.node.append(...added.map((token) => optionOf(token)));
    if (added.length && !this.node.querySelector('[tabindex="0"]')) this.node.firstChild.tabIndex = 0;
  }

  #listen() {
    this.node.addEventListener("focusin", (event) => this.#look(event.target));
    this.node.addEventListener("pointerover", (event) => this.#look(event.target));
    this.node.addEventListener("pointerleave", () => this.#lookAtFocused());
    this.node.addEventListener("focusout", () => this.alternatives.hide());
    this.node.addEventListener("keydown", (event) => this.#move(event));
  }

  #look(target) {
    const option = target.closest(".token");
    const index = [...this.node.children].indexOf(option);
    if (index >= 0) this.alternatives.show(option.lastChild, this.#tokens[index]);
  }

  /** Come back to the token that has the focus when the pointer leaves. */
  #lookAtFocused() {
    this.alternatives.hide();
    if (this.node.contains(document.activeElement)) this.#look(document.activeElement);
  }

  #move(event) {
    if (event.key === "Escape") {
      event.stopPropagation(); // it would stop what runs
      this.alternatives.hide();
      return;
    }
    const next = neighbour(event.target, event.key);
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

/** Return a probability in words of at most three digits. */
export function percent(logprob) {
  const share = Math.exp(logprob) * 100;
  if (share >= 99.95) return "100 %";
  if (share < 0.01) return "< 0.01 %";
  return `${share.toFixed(share < 1 ? 2 : 1)} %`;
}

/** Return a token's text with its white space made visible. */
export function visible(text) {
  if (text === "") return "∅";
  return shownBytes(text).replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

function optionOf(token) {
  const text = shownBytes(token.text).replaceAll("\n", "↵\n");
  const isKnown = token.logprob !== null; // the first token of an echoed prompt has none
  const name = isKnown ? `${visible(token.text)}, ${percent(token.logprob)}` : visible(token.text);
  const option = element("span", { class: "token", role: "option", tabindex: -1, "aria-label": name });
  option.append(...coloured(text));
  option.style.setProperty("--surprise", isKnown ? surpriseOf(token.logprob) : 0);
  option.setAttribute("aria-describedby", "alternatives");
  return option;
}

/** Return a token's text in parts; a space before a word stays plain, as it may end a line. */
function coloured(text) {
  const isWord = /^ \S/.test(text);
  const word = element("span", { class: "word" }, isWord ? text.slice(1) : text);
  return isWord ? [" ", word] : [word];
}

/** Return 0 for a certain token and 1 for one that nobody expected, by its logprob. */
function surpriseOf(logprob) {
  return Math.min(logprob / Math.log(LEAST_SHOWN), 1).toFixed(3);
}

/** A token that is no text alone is named `bytes:\xNN…`. */
function shownBytes(text) {
  return text.startsWith("bytes:\\x") ? text.slice("bytes:".length) : text;
}

function neighbour(option, key) {
  const all = option.parentElement;
  const found = {
    ArrowRight: option.nextElementSibling,
    ArrowLeft: option.previousElementSibling,
    Home: all.firstElementChild,
    End: all.lastElementChild,
  };
  return found[key];
}
