// The dialects and their fields, as the server's own OpenAPI document declares them.

const SLIDER_SPAN = 20; // a wider range is typed

/** Return the dialects of a document that complete a prompt, in its order. */
export function dialectsOf(openapi) {
  return Object.entries(openapi.paths)
    .filter(([, { post }]) => bodyOf(post)?.properties?.prompt)
    .map(([path, { post }]) => dialectOf(path, post));
}

/** Return what a schema says of a field: its kind of widget, its default, its range. */
export function fieldOf(name, schema) {
  const variants = (schema.anyOf ?? [schema]).filter((variant) => !isNull(variant));
  const field = { name, doc: schema.description ?? "", default: schema.default, ...rangeOf(variants) };
  return { ...field, kind: kindOf(variants), isSlider: isSlider(field) };
}

function dialectOf(path, post) {
  const { properties } = bodyOf(post);
  return {
    name: post.operationId.replace(/_create$/, ""),
    title: post.tags[0],
    path,
    base: path.replace(/\/completions$/, ""),
    properties,
    fields: fieldsOf(properties),
  };
}

/** Return the schema of an operation's body, undefined when it has none. */
function bodyOf(post) {
  return post?.requestBody?.content["application/json"].schema;
}

/** Return the fields that can be chosen: no aliases, nothing that takes null alone. */
function fieldsOf(properties) {
  return Object.entries(properties)
    .filter(([name, schema]) => !["model", "prompt"].includes(name) && !schema["x-alias-of"])
    .map(([name, schema]) => fieldOf(name, schema))
    .filter((field) => field.kind !== null);
}

function kindOf(variants) {
  const types = variants.map(typeOf);
  if (types.includes("array")) {
    const { items } = variants[types.indexOf("array")];
    if (typeOf(items) === "integer") return "ids";
    return types.includes("string") ? "oneOrMore" : "lines";
  }
  if (types.includes("object")) return variants[0].properties ? "flags" : "pairs";
  if (types.includes("integer") || types.includes("number")) return "number";
  if (types.includes("boolean")) return "flag";
  return types.includes("string") ? "text" : null;
}

function rangeOf(variants) {
  const [first] = variants;
  return {
    minimum: first?.minimum ?? first?.exclusiveMinimum,
    isOpen: first?.exclusiveMinimum !== undefined,
    maximum: first?.maximum,
    step: first && typeOf(first) === "integer" ? 1 : 0.05,
    flags: first?.properties && Object.keys(first.properties),
  };
}

function isSlider(field) {
  const span = field.maximum - field.minimum;
  return typeof field.default === "number" && span <= SLIDER_SPAN;
}

/** Return the type of a schema, without null. */
function typeOf(schema) {
  return [schema.type].flat().find((type) => type !== "null");
}

function isNull(schema) {
  return schema.type === "null";
}
