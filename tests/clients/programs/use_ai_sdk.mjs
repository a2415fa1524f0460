// Vercel's AI SDK with its provider for compatible servers.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

globalThis.AI_SDK_LOG_WARNINGS = false;
const { BASE_URL, API_KEY, MODEL } = process.env;
const provider = (apiKey) =>
  createOpenAICompatible({ name: "served", baseURL: BASE_URL, apiKey, includeUsage: true });
const asked = (more = {}) => ({
  model: provider(API_KEY).completionModel(MODEL),
  prompt: "Once upon a time",
  maxOutputTokens: 12,
  temperature: 0,
  maxRetries: 0,
  ...more,
});

const whole = await generateText(asked());
assert.ok(whole.text.length > 0);
assert.ok(["stop", "length"].includes(whole.finishReason));
assert.ok(whole.usage.outputTokens > 0 && whole.usage.outputTokens <= 12);
assert.ok(whole.response.timestamp.getFullYear() > 2020);

const stream = streamText(asked({ onError() {} }));
let text = "";
for await (const part of stream.textStream) text += part;
assert.equal(text, whole.text);
assert.equal(await stream.finishReason, whole.finishReason);
assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);

const stop = whole.text.slice(3, 6);
const stopped = await generateText(asked({ stopSequences: [stop] }));
assert.equal(stopped.text, whole.text.slice(0, whole.text.indexOf(stop)));

const stranger = provider("sk-other").completionModel(MODEL);
await assert.rejects(generateText(asked({ model: stranger })), (error) => error.statusCode === 401);
const other = provider(API_KEY).completionModel("other");
await assert.rejects(generateText(asked({ model: other })), (error) => error.statusCode === 404);
