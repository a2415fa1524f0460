// One request while it runs: its choices grow with each chunk, whatever the dialect.

import { Failure, post } from "./client.js";
import { eventsOf } from "./sse.js";

/** A request and what came of it. States: waiting, running, done, stopped, failed. */
export class Run {
  constructor(dialect, body) {
    this.dialect = dialect;
    this.body = body;
    this.state = "waiting";
    this.choices = [];
    this.usage = null;
    this.seed = null;
    this.ignored = null;
    this.failure = null;
    this.started = performance.now();
    this.firstToken = null;
    this.ended = null;
  }

  /** Run to the end; `changed` is called after each piece. Never throws. */
  async go(signal, changed) {
    try {
      await this.#answer(await post(this.dialect.path, this.body, signal), changed);
      this.state = "done";
    } catch (error) {
      this.state = error.name === "AbortError" ? "stopped" : "failed";
      this.failure = this.state === "failed" ? asFailure(error) : null;
    }
    this.ended = performance.now();
    changed();
  }

  /** Return how many tokens came: as the server counts them, else as they were seen. */
  get tokenCount() {
    const seen = this.choices.reduce((sum, choice) => sum + choice.pieces, 0);
    return this.usage?.completion_tokens ?? seen;
  }

  /** Return the tokens each second after the first one, null before there are two. */
  get tokensPerSecond() {
    const seconds = ((this.ended ?? performance.now()) - this.firstToken) / 1000;
    const later = this.tokenCount - this.choices.length;
    return this.body.stream && this.firstToken && later > 0 && seconds > 0 ? later / seconds : null;
  }

  async #answer(response, changed) {
    this.seed = response.headers.get("x-ortolan-seed");
    this.ignored = response.headers.get("x-ortolan-ignored");
    this.state = "running";
    changed();
    if (!this.body.stream) {
      this.#add(await response.json());
      return;
    }
    for await (const data of eventsOf(response.body)) {
      if (data === "[DONE]") return;
      this.#add(JSON.parse(data));
      changed();
    }
    throw new Failure(0, { message: "The connection ended before the text did." });
  }

  #add(chunk) {
    if (chunk.error) throw new Failure(200, chunk.error);
    for (const part of chunk.choices) this.#addPart(part);
    this.usage = chunk.usage ?? this.usage;
  }

  #addPart(part) {
    const choice = (this.choices[part.index] ??= { text: "", tokens: [], pieces: 0, finish: null });
    if (part.text) this.firstToken ??= performance.now();
    choice.text += part.text;
    choice.pieces += part.text ? 1 : 0;
    choice.tokens.push(...tokensOf(part.logprobs));
    choice.finish = part.finish_reason ?? choice.finish;
  }
}

/** Return the four arrays of logprobs as a list of tokens with their alternatives. */
function tokensOf(logprobs) {
  return (logprobs?.tokens ?? []).map((text, i) => ({
    text,
    logprob: logprobs.token_logprobs[i],
    top: Object.entries(logprobs.top_logprobs?.[i] ?? {}).sort((a, b) => b[1] - a[1]),
  }));
}

function asFailure(error) {
  return error instanceof Failure ? error : new Failure(0, { message: `The connection broke: ${error.message}` });
}
