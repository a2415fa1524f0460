// From the form to the bodies of requests: one for each seed.

const SEED_BITS = 2n ** 63n;

/** Return the bodies of `count` requests that differ in their seed alone; `start` is used when none is chosen. */
export function bodiesOf(dialect, prompt, values, count, start) {
  const body = { model: dialect.model, prompt, ...values };
  if (count === 1) return [body];
  return seedsFrom(values.seed ?? start, count).map((seed) => ({ ...body, seed }));
}

/** Return a seed from anywhere, short enough to be read aloud. */
export function randomSeed() {
  return Math.floor(Math.random() * 1e6);
}

/** Return `count` seeds in a row. */
export function seedsFrom(first, count) {
  if (!Number.isInteger(first) && typeof first !== "bigint") return Array(count).fill(first); // refused by the server
  return Array.from({ length: count }, (_, i) => shortened(wrapped(BigInt(first) + BigInt(i))));
}

/** Return a seed within 64 bits with a sign. */
function wrapped(seed) {
  return seed >= SEED_BITS ? seed - 2n * SEED_BITS : seed;
}

function shortened(seed) {
  const number = Number(seed);
  return Number.isSafeInteger(number) ? number : seed;
}
