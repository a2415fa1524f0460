// The request as commands that people can keep: curl, and Python with the openai package.
//
// A key is never written into them: they read it from the environment.

import { urlOf } from "./client.js";
import { toJson, toPython } from "./values.js";

// What the openai package's completions.create has as arguments; all else goes into extra_body.
export const OPENAI_ARGUMENTS = [
  "model",
  "prompt",
  "best_of",
  "echo",
  "frequency_penalty",
  "logit_bias",
  "logprobs",
  "max_tokens",
  "n",
  "presence_penalty",
  "seed",
  "stop",
  "stream",
  "stream_options",
  "temperature",
  "top_p",
  "user",
];

/** Return the request as a curl command. */
export function curlOf(dialect, body, hasKey) {
  const lines = [
    `curl ${body.stream ? "-N " : ""}${urlOf(dialect.path)}`,
    "-H 'content-type: application/json'",
    ...(hasKey ? ['-H "authorization: Bearer $ORTOLAN_API_KEY"'] : []),
    `-d '${toJson(body, "  ").replaceAll("'", "'\\''")}'`,
  ];
  return lines.join(" \\\n  ");
}

/** Return the request as a Python program. */
export function pythonOf(dialect, body, hasKey) {
  const key = hasKey ? 'os.environ["ORTOLAN_API_KEY"]' : '"none"';
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${toPython(urlOf(dialect.base).replace(/\/$/, ""))}, api_key=${key})`,
    `${body.stream ? "stream" : "answer"} = client.completions.create(`,
    ...argumentsOf(body).map((argument) => `    ${argument},`),
    ")",
    ...(body.stream ? READ_STREAM : READ_ANSWER),
  ].join("\n");
}

const READ_STREAM = [
  "for chunk in stream:",
  "    for choice in chunk.choices:",
  '        print(choice.text, end="", flush=True)',
  "print()",
];
const READ_ANSWER = ["for choice in answer.choices:", "    print(choice.text)"];

function argumentsOf(body) {
  const own = Object.entries(body).filter(([name]) => OPENAI_ARGUMENTS.includes(name));
  const others = Object.entries(body).filter(([name]) => !OPENAI_ARGUMENTS.includes(name));
  const written = own.map(([name, value]) => `${name}=${toPython(value)}`);
  return others.length ? [...written, `extra_body=${toPython(Object.fromEntries(others))}`] : written;
}
