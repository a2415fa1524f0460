// The form of a dialect's fields, in groups; a field that no group names is under "More".

import { element, withCode } from "./dom.js";
import { widgetOf } from "./widgets.js";

const GROUPS = [
  ["Sampling", ["temperature", "top_p", "top_k", "min_p", "seed", "n", "best_of"]],
  [
    "Length and end",
    ["max_tokens", "min_tokens", "stop", "include_stop_str_in_output", "stop_token_ids", "ignore_eos"],
  ],
  [
    "Penalties and bans",
    [
      "frequency_penalty",
      "presence_penalty",
      "repetition_penalty",
      "logit_bias",
      "allowed_token_ids",
      "bad_words",
    ],
  ],
  [
    "Answer",
    ["stream", "stream_options", "logprobs", "prompt_logprobs", "echo", "return_token_ids", "skip_special_tokens"],
  ],
];
const OPEN_AT_FIRST = ["Sampling", "Length and end"];

/** The fields of the dialect that is shown; what was entered stays when the dialect changes. */
export class FieldForm {
  #rows = new Map();
  #open = null;

  constructor(container, changed) {
    this.container = container;
    this.changed = changed;
  }

  /** Show the fields of a dialect. */
  show(fields) {
    const states = this.#states();
    this.#rows = new Map(fields.map((field) => [field.name, this.#row(field)]));
    for (const [name, state] of states) this.set(name, state);
    this.container.replaceChildren(...this.#groups(fields));
    this.#mark();
  }

  /** Return what was chosen, by name; fields at their defaults are left out. */
  values() {
    const chosen = [...this.#rows].map(([name, { widget }]) => [name, widget.value]);
    return Object.fromEntries(chosen.filter(([, value]) => value !== undefined));
  }

  /** Put a state into a field: text, a flag, or the names of flags. */
  set(name, state) {
    const row = this.#rows.get(name);
    if (row) row.widget.state = state;
    this.#mark();
  }

  /** Return the declaration of a field, undefined when the dialect has none. */
  field(name) {
    return this.#rows.get(name)?.field;
  }

  /** Show an error under its field; return whether there is such a field. */
  markWrong(name, message) {
    const row = this.#rows.get(name);
    if (!row) return false;
    row.widget.input.setAttribute("aria-invalid", "true");
    row.error.replaceChildren(...withCode(message));
    return true;
  }

  /** Take all errors away. */
  clearErrors() {
    for (const { widget, error } of this.#rows.values()) {
      widget.input.removeAttribute("aria-invalid");
      error.replaceChildren();
    }
  }

  /** Put the cursor into a field, wherever it is hidden. */
  focus(name) {
    const { widget } = this.#rows.get(name);
    widget.input.closest("details").open = true;
    widget.input.focus();
  }

  /** Return what was entered; the defaults of one dialect are not those of another. */
  #states() {
    const set = [...this.#rows].filter(([, { widget }]) => widget.value !== undefined);
    return set.map(([name, { widget }]) => [name, widget.state]);
  }

  #row(field) {
    const id = `field-${field.name}`;
    const widget = widgetOf(field, id, () => this.#change());
    const error = element("p", { class: "wrong", id: `${id}-error` });
    widget.input.setAttribute("aria-describedby", `${id}-error ${id}-doc`);
    const label = element("label", { for: id }, element("code", {}, field.name));
    const doc = element("p", { class: "doc", id: `${id}-doc` }, ...withCode(field.doc));
    const node = element("div", { class: `field ${field.kind}` }, label, widget.control, error, doc);
    return { field, widget, error, node };
  }

  #change() {
    this.clearErrors();
    this.#mark();
    this.changed();
  }

  #groups(fields) {
    this.#rememberOpen();
    const grouped = new Set(GROUPS.flatMap(([, names]) => names));
    const others = fields.map((field) => field.name).filter((name) => !grouped.has(name));
    return [...GROUPS, ["More", others]].map(([title, names]) => this.#group(title, names));
  }

  #group(title, names) {
    const rows = names.map((name) => this.#rows.get(name)).filter((row) => row);
    const count = element("span", { class: "count" });
    const summary = element("summary", {}, title, count);
    const attributes = { class: "group", open: this.#open.includes(title), "data-title": title };
    return element("details", attributes, summary, ...rows.map((row) => row.node));
  }

  /** Remember which groups are open; on a small screen none is at first. */
  #rememberOpen() {
    const groups = [...this.container.querySelectorAll("details")];
    const isSmall = window.matchMedia("(max-width: 60rem)").matches;
    const atFirst = isSmall ? [] : OPEN_AT_FIRST;
    this.#open = groups.length ? groups.filter((group) => group.open).map((g) => g.dataset.title) : atFirst;
  }

  /** Show which fields differ from their defaults, and how many in each group. */
  #mark() {
    for (const { widget, node } of this.#rows.values()) {
      node.classList.toggle("is-set", widget.value !== undefined);
    }
    for (const group of this.container.querySelectorAll("details")) {
      const set = group.querySelectorAll(".is-set").length;
      group.querySelector(".count").textContent = set ? `${set} set` : "";
    }
  }
}
