// One widget for each kind of field. A widget has the `input` that a label names, the `control` to
// put on the page, the `value` for the request (undefined: left out) and the `state` to come back to.

import { element } from "./dom.js";
import { parseIds, parseLines, parseNumber, parseOneOrMore, parsePairs } from "./values.js";

const PARSERS = {
  number: parseNumber,
  ids: parseIds,
  lines: parseLines,
  oneOrMore: parseOneOrMore,
  pairs: parsePairs,
  text: (text) => text,
};
const PLACEHOLDERS = {
  ids: "1, 2, 3",
  lines: "one a line, \\n is a line break",
  oneOrMore: "one a line, \\n is a line break",
  pairs: "50256: -100",
};

/** Return the widget of a field; `id` is for its label, `changed` is called after each change. */
export function widgetOf(field, id, changed) {
  if (field.kind === "flag") return flagWidget(field, id, changed);
  if (field.kind === "flags") return flagsWidget(field, id, changed);
  return typedWidget(field, id, changed);
}

function flagWidget(field, id, changed) {
  const input = element("input", { type: "checkbox", id, class: "switch", checked: field.default === true });
  input.addEventListener("change", changed);
  return {
    input,
    control: input,
    get value() {
      return input.checked === (field.default === true) ? undefined : input.checked;
    },
    get state() {
      return input.checked;
    },
    set state(isChecked) {
      input.checked = isChecked;
    },
  };
}

/** Return the widget of an object of flags, of which those that are on are sent. */
function flagsWidget(field, id, changed) {
  const boxes = field.flags.map((name, i) => {
    const box = element("input", { type: "checkbox", id: i ? `${id}-${i}` : id, name });
    box.addEventListener("change", changed);
    return box;
  });
  const labels = boxes.map((box) => element("label", { class: "one-flag" }, box, element("code", {}, box.name)));
  const on = () => boxes.filter((box) => box.checked).map((box) => box.name);
  return {
    input: boxes[0],
    control: element("div", { class: "flags" }, ...labels),
    get value() {
      return on().length ? Object.fromEntries(on().map((name) => [name, true])) : undefined;
    },
    get state() {
      return on();
    },
    set state(names) {
      for (const box of boxes) box.checked = names.includes(box.name);
    },
  };
}

function typedWidget(field, id, changed) {
  const input = inputOf(field, id);
  const slider = field.isSlider ? sliderOf(field, input, changed) : null;
  const follow = () => slider && (slider.value = input.value.trim() || field.default);
  input.addEventListener("input", () => {
    follow();
    changed();
  });
  if (field.kind === "number") stepWithArrows(field, input);
  return {
    input,
    control: slider ? element("div", { class: "sliding" }, slider, input) : input,
    get value() {
      return input.value.trim() === "" ? undefined : PARSERS[field.kind](input.value);
    },
    get state() {
      return input.value;
    },
    set state(text) {
      input.value = text;
      follow();
    },
  };
}

function inputOf(field, id) {
  const shared = { id, autocomplete: "off", spellcheck: "false", placeholder: placeholderOf(field) };
  if (["lines", "oneOrMore", "pairs"].includes(field.kind)) return element("textarea", { rows: 1, ...shared });
  const isPlain = field.kind === "number" && field.minimum >= 0; // that keyboard has no minus
  return element("input", { type: "text", inputmode: isPlain ? "decimal" : undefined, ...shared });
}

function placeholderOf(field) {
  if (PLACEHOLDERS[field.kind]) return PLACEHOLDERS[field.kind];
  return field.default === undefined || field.default === "" ? "not set" : String(field.default);
}

/** Return a slider for the pointer; the keyboard has the box beside it, so it is no stop of its own. */
function sliderOf(field, input, changed) {
  const slider = element("input", {
    type: "range",
    min: field.isOpen ? field.minimum + field.step : field.minimum,
    max: field.maximum,
    step: field.step,
    value: field.default,
    tabindex: -1,
    "aria-hidden": "true",
  });
  slider.addEventListener("input", () => {
    input.value = Number(slider.value) === field.default ? "" : slider.value;
    changed();
  });
  return slider;
}

/** Let the arrow keys change a number by its step, within its range. */
function stepWithArrows(field, input) {
  input.addEventListener("keydown", (event) => {
    const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    const now = parseNumber(input.value.trim() || String(field.default ?? field.minimum ?? 0));
    if (!direction || typeof now !== "number") return;
    event.preventDefault();
    const next = Math.min(Math.max(now + direction * field.step, field.minimum), field.maximum);
    input.value = String(Number(next.toFixed(2)));
    input.dispatchEvent(new Event("input"));
  });
}
