// What people type becomes JSON values, and values become JSON and Python.
//
// Nothing is checked here: what is no number stays text, and the server says what is wrong with it.
// Whole numbers of 64 bits stay exact, as BigInt.

const INTEGER = /^[+-]?\d+$/;
const DECIMAL = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const ESCAPES = { n: "\n", t: "\t", r: "\r", "\\": "\\" };

/** Return the number that a text writes, or the text. */
export function parseNumber(text) {
  const bare = text.trim();
  if (INTEGER.test(bare)) {
    const number = Number(bare);
    return Number.isSafeInteger(number) ? number : BigInt(bare.replace("+", ""));
  }
  return DECIMAL.test(bare) ? Number(bare) : text;
}

/** Return the lines of a text, in which \n, \t, \r and \\ are escapes. */
export function parseLines(text) {
  return text.split("\n").filter((line) => line !== "").map(unescaped);
}

/** Return the lines of a text, and a single one alone. */
export function parseOneOrMore(text) {
  const lines = parseLines(text);
  return lines.length === 1 ? lines[0] : lines;
}

/** Return the numbers of a text, separated by commas or spaces. */
export function parseIds(text) {
  return text.split(/[\s,]+/).filter((part) => part !== "").map(parseNumber);
}

/** Return an object of lines such as `50256: -100`. */
export function parsePairs(text) {
  const pairs = {};
  for (const line of text.split("\n")) {
    if (line.trim() === "") continue;
    const colon = line.lastIndexOf(":");
    const key = colon < 0 ? line : line.slice(0, colon);
    const isId = INTEGER.test(key.trim());
    pairs[isId ? key.trim() : unescaped(key)] = colon < 0 ? null : parseNumber(line.slice(colon + 1));
  }
  return pairs;
}

/** Return a value as JSON; with `indent`, an object has a line for each field. */
export function toJson(value, indent = "") {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return `[${value.map((item) => toJson(item)).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const fields = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${toJson(item)}`);
  return indent && fields.length ? `{\n${indent}${fields.join(`,\n${indent}`)}\n}` : `{${fields.join(", ")}}`;
}

/** Return a value as a Python literal. */
export function toPython(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(toPython).join(", ")}]`;
  // JSON's strings and numbers are Python's too.
  if (typeof value !== "object") return toJson(value);
  const items = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${toPython(item)}`);
  return `{${items.join(", ")}}`;
}

function unescaped(text) {
  return text.replace(/\\([ntr\\])/g, (_, letter) => ESCAPES[letter]);
}
