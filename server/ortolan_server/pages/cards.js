// A card for each choice of each run: its text or its tokens, its seed and its figures.

import { button, element, withCode } from "./dom.js";
import { TokenList } from "./tokens.js";

const STATES = { waiting: "waiting", running: "generating", stopped: "stopped", failed: "" };

/** The card of one choice; `acts` are what its buttons do. */
export class Card {
  constructor(run, index, alternatives, acts) {
    this.run = run;
    this.index = index;
    this.acts = acts;
    this.tokens = new TokenList(alternatives);
    this.text = element("div", { class: "text" });
    this.title = element("h3");
    this.figures = element("p", { class: "figures" });
    this.note = element("div", { class: "note" });
    this.buttons = this.#buttons();
    this.node = element(
      "article",
      { class: "card" },
      element("header", {}, this.title, this.buttons),
      this.text,
      this.tokens.node,
      this.note,
      this.figures,
    );
  }

  /** Show the run as it is now, as `view`: text or tokens. */
  render(view) {
    const choice = this.run.choices[this.index];
    this.title.textContent = titleOf(this.run, this.index);
    this.node.dataset.state = this.run.state;
    this.figures.textContent = figuresOf(this.run, choice);
    const isEmpty = this.run.state === "failed" && !choice?.text;
    this.buttons.hidden = isEmpty;
    this.text.hidden = isEmpty || view === "tokens";
    this.tokens.node.hidden = view !== "tokens" || !choice?.tokens.length;
    if (choice && this.text.textContent !== choice.text) this.text.textContent = choice.text;
    if (choice) this.tokens.update(choice.tokens);
    this.#renderNote(view, choice);
  }

  #buttons() {
    const copy = button("Copy", () => this.acts.copy(this.run.choices[this.index]?.text ?? ""));
    const keep = button("Keep seed", () => this.acts.keepSeed(this.run.seed), {
      title: "Put this seed into the form",
    });
    return element("span", { class: "quiet-buttons" }, copy, keep);
  }

  #renderNote(view, choice) {
    const parts = [...this.#failure(), ...this.#ignored(), ...this.#withoutTokens(view, choice)];
    const words = parts.map((part) => part.textContent).join();
    if (this.shown === words) return; // a button that was made anew would lose the focus
    this.shown = words;
    this.note.replaceChildren(...parts);
  }

  #failure() {
    const { failure } = this.run;
    if (!failure) return [];
    const facts = [failure.status >= 400 ? `HTTP ${failure.status}` : "", failure.code ?? failure.type ?? ""];
    const id = failure.requestId ? `request ${failure.requestId}` : "";
    const wait = failure.retryAfter ? `try again in ${failure.retryAfter} s` : "";
    const line = [...facts, wait, id].filter((part) => part).join(" · ");
    const { param } = failure;
    const go = this.acts.hasField(param) ? [button(`Go to ${param}`, () => this.acts.focusField(param))] : [];
    return [
      element("p", { class: "failure" }, ...withCode(failure.message)),
      element("p", { class: "facts" }, line),
      ...go,
    ];
  }

  #ignored() {
    const { ignored } = this.run;
    return ignored ? [element("p", {}, `Ignored: ${decodeURIComponent(ignored)}`)] : [];
  }

  #withoutTokens(view, choice) {
    const isMissing = view === "tokens" && this.run.state === "done" && choice && !choice.tokens.length;
    if (!isMissing) return [];
    return [
      element("p", {}, "This answer came without logprobs."),
      button("Ask again with the same seed", () => this.acts.askAgain()),
    ];
  }
}

function titleOf(run, index) {
  const seed = run.seed ?? run.body.seed ?? null;
  const name = seed === null ? "" : `seed ${seed}`;
  if (run.state === "failed" && !run.choices.length) return name ? `No answer · ${name}` : "No answer";
  return run.choices.length > 1 ? `${name} · choice ${index + 1}` : name;
}

/** Return what is known of a run in one line. */
function figuresOf(run, choice) {
  const firstMs = run.firstToken ? Math.round(run.firstToken - run.started) : null;
  const rate = run.tokensPerSecond;
  const parts = [
    STATES[run.state] ?? `finish_reason ${choice?.finish ?? "—"}`,
    run.tokenCount ? `${run.tokenCount} tokens` : "",
    rate ? `${rate.toFixed(1)} tokens/s` : "",
    run.body.stream && firstMs !== null ? `first after ${firstMs} ms` : "",
    run.usage?.prompt_tokens_details?.cached_tokens
      ? `${run.usage.prompt_tokens_details.cached_tokens} prompt tokens from the cache`
      : "",
  ];
  return parts.filter((part) => part).join(" · ");
}
