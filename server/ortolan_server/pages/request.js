// From the form to the bodies of requests: one for each seed.

const SEED_END = 2n ** 63n; // seeds are below it

/** Return `count` bodies that differ in their seed alone; `start` is taken where the body has none. */
export function bodiesOf(body, count, start) {
  if (count === 1) return [body];
  return seedsFrom(body.seed ?? start, count).map((seed) => ({ ...body, seed }));
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
  return seed >= SEED_END ? seed - 2n * SEED_END : seed;
}

function shortened(seed) {
  const number = Number(seed);
  return Number.isSafeInteger(number) ? number : seed;
}
