// Hugging Face's client with an endpoint of one's own.
import assert from "node:assert/strict";
import { InferenceClient } from "@huggingface/inference";

const { BASE_URL, API_KEY, MODEL } = process.env;
const client = new InferenceClient(API_KEY, { endpointUrl: BASE_URL, retry_on_error: false });
const asked = (parameters = {}) => ({
  model: MODEL,
  inputs: "Once upon a time",
  parameters: { max_new_tokens: 12, temperature: 0, ...parameters },
});

const whole = (await client.textGeneration(asked())).generated_text;
const short = (await client.textGeneration(asked({ max_new_tokens: 3 }))).generated_text;
assert.ok(whole.startsWith(short) && short.length < whole.length);
const passed = { do_sample: false, return_full_text: false, details: true, top_k: 20 };
assert.ok((await client.textGeneration(asked(passed))).generated_text);

let streamed = "";
for await (const part of client.textGenerationStream(asked())) {
  streamed += part.choices ? (part.choices[0]?.text ?? "") : (part.token?.text ?? "");
}
assert.equal(streamed, whole);
