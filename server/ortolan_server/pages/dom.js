// Elements from their name, attributes and children; text stays text.

/** Return a new element. Attributes that are true, false or absent are set bare or left out. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Return the parts of a sentence in which `names` stand between backticks. */
export function withCode(text) {
  return text.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part));
}

/** Return the element of the page with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Return a button that calls `press`. */
export function button(label, press, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", press);
  return made;
}
