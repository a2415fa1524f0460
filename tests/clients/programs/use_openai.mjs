// The openai package for Node.
import assert from "node:assert/strict";
import OpenAI from "openai";

const { BASE_URL, API_KEY, MODEL } = process.env;
const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0 });
const body = { model: MODEL, prompt: "Once upon a time", max_tokens: 12, temperature: 0 };

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}
const textOf = (chunks, index = 0) =>
  chunks.flatMap((chunk) => chunk.choices).filter((choice) => choice.index === index)
    .map((choice) => choice.text).join("");

const models = [];
for await (const model of client.models.list()) models.push(model.id);
assert.deepEqual(models, [MODEL]);

await client.completions.create(body);
const whole = await client.completions.create(body);
const streamed = await collect(await client.completions.create({
  ...body, stream: true, stream_options: { include_usage: true },
}));
assert.equal(textOf(streamed), whole.choices[0].text);
assert.deepEqual(streamed.at(-1).choices, []);
assert.deepEqual(streamed.at(-1).usage, whole.usage);

const two = { ...body, n: 2, temperature: 1, seed: 4 };
const both = await collect(await client.completions.create({ ...two, stream: true }));
const wholeTwo = await client.completions.create(two);
assert.deepEqual([textOf(both, 0), textOf(both, 1)], wholeTwo.choices.map((choice) => choice.text));

const left = await client.completions.create({ ...body, max_tokens: 100, stream: true });
for await (const _ of left) break;
const { request_id: id } = await client.completions.create(body).withResponse();
assert.ok(id);

await assert.rejects(client.completions.create({ ...body, temperature: 9 }), (error) =>
  error instanceof OpenAI.BadRequestError && error.param === "temperature");
await assert.rejects(client.completions.create({ ...body, model: "other" }), (error) =>
  error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
const stranger = new OpenAI({ baseURL: BASE_URL, apiKey: "sk-other", maxRetries: 0 });
await assert.rejects(stranger.completions.create(body), OpenAI.AuthenticationError);
