// The page: a prompt and fields become requests, and requests become answers.

import { Alternatives } from "./alternatives.js";
import { Answers } from "./answers.js";
import { get } from "./client.js";
import { byId, element } from "./dom.js";
import { FieldForm } from "./form.js";
import { askForKey, readKey, setUpKey } from "./key.js";
import { bodiesOf, randomSeed } from "./request.js";
import { dialectsOf } from "./schema.js";
import { curlOf, pythonOf } from "./snippets.js";
import { StatusPanel } from "./status.js";

// Where the page begins: an answer that can be watched, calmer and longer than the API's defaults.
const AT_FIRST = { temperature: "0.7", max_tokens: "64", stream: true, stream_options: ["include_usage"] };
const TOP_TOKENS = 5; // what every dialect allows
const WRITERS = { curl: curlOf, python: pythonOf };

class Page {
  #dialects = [];
  #dialect = null;
  #seed = randomSeed();
  #form = new FieldForm(byId("fields"), () => this.#writeCode());
  #status = new StatusPanel();
  #answers = new Answers(byId("answers"), new Alternatives(byId("alternatives")), this.#acts(), (runs) =>
    this.#end(runs),
  );

  start() {
    byId("prompt-form").addEventListener("submit", (event) => {
      event.preventDefault(); // the page sends no form
      this.generate();
    });
    byId("stop").addEventListener("click", () => this.#answers.stop());
    byId("reset").addEventListener("click", () => this.#reset());
    byId("copy-code").addEventListener("click", () => copy(byId("code").textContent));
    byId("view").addEventListener("change", () => this.#changeView());
    byId("prompt").addEventListener("input", () => this.#writeCode());
    for (const id of ["seeds", "models", "code-format"]) {
      byId(id).addEventListener("change", () => this.#writeCode());
    }
    document.addEventListener("keydown", (event) => this.#shortcut(event));
    setUpKey(() => this.#useKey());
    this.load();
    this.#status.start();
  }

  /** Ask the server what it takes, and show the form of it. */
  async load() {
    try {
      const dialects = dialectsOf(await (await get("openapi.json")).json());
      this.#offerModels(await (await get(`${dialects[0].base}/models`)).json());
      this.#dialects = dialects;
    } catch (failure) {
      this.#showNoForm(failure);
      return;
    }
    this.#offerDialects();
    this.#chooseDialect(this.#dialects[0]);
    this.#reset();
    byId("generate").disabled = false;
    byId("load-note").textContent = "";
  }

  /** Send a request for each seed. */
  generate() {
    if (!this.#dialect) return;
    this.#begin();
    this.#answers.send(this.#dialect, this.#bodies());
    this.#seed = randomSeed();
    this.#writeCode();
  }

  #begin() {
    this.#form.clearErrors();
    this.#setRunning(true);
    say("Generating.");
  }

  #end(runs) {
    this.#setRunning(false);
    const failed = runs.find((run) => run.state === "failed");
    const tokens = runs.reduce((sum, run) => sum + run.tokenCount, 0);
    if (failed) this.#explain(failed.failure);
    else say(runs.some((run) => run.state === "stopped") ? "Stopped." : `Done: ${tokens} tokens.`);
  }

  #explain(failure) {
    say(failure.message);
    if (failure.param) this.#form.markWrong(failure.param, failure.message);
    if (failure.status === 401) askForKey(failure.message);
  }

  /** Return what the buttons of an answer do. */
  #acts() {
    return {
      copy,
      keepSeed: (seed) => this.#keepSeed(seed),
      askAgain: () => {
        this.#begin();
        this.#answers.sendAgain(this.#form.values().logprobs ?? TOP_TOKENS);
      },
      hasField: (name) => this.#form.field(name) !== undefined,
      focusField: (name) => this.#form.focus(name),
    };
  }

  #bodies() {
    const count = Number(byId("seeds").value);
    const [model, prompt] = [byId("models").value, byId("prompt").value];
    return bodiesOf({ model, prompt, ...this.#form.values() }, count, this.#seed);
  }

  #keepSeed(seed) {
    if (seed === null) return;
    this.#form.set("seed", seed);
    this.#writeCode();
    say(`Seed ${seed} is in the form.`);
  }

  /** Tokens need logprobs, so they are asked for as long as that view is chosen. */
  #changeView() {
    const { logprobs } = this.#form.values();
    if (this.#view === "tokens" && logprobs === undefined) this.#form.set("logprobs", String(TOP_TOKENS));
    if (this.#view === "text" && logprobs === TOP_TOKENS) this.#form.set("logprobs", "");
    byId("legend").hidden = this.#view !== "tokens";
    this.#answers.view = this.#view;
    this.#writeCode();
  }

  get #view() {
    return byId("view").elements.view.value;
  }

  /** Offer the models that this key may use; a single one is no choice. */
  #offerModels({ data }) {
    byId("models").replaceChildren(...data.map(({ id }) => element("option", {}, id)));
    byId("models").hidden = data.length < 2;
    byId("model").textContent = data.length < 2 ? data[0]?.id : "";
    document.title = `${data[0]?.id} · Ortolan`;
  }

  #offerDialects() {
    const labels = this.#dialects.map((dialect, i) => {
      const radio = element("input", { type: "radio", name: "dialect", value: dialect.name, checked: i === 0 });
      radio.addEventListener("change", () => this.#chooseDialect(dialect));
      return element("label", {}, radio, element("span", {}, dialect.title));
    });
    byId("dialects").replaceChildren(...labels);
  }

  #chooseDialect(dialect) {
    this.#dialect = dialect;
    byId("route").textContent = `POST ${dialect.path}`;
    this.#form.show(dialect.fields);
    this.#writeCode();
  }

  #reset() {
    this.#form.show([]);
    this.#form.show(this.#dialect.fields);
    for (const [name, state] of Object.entries(AT_FIRST)) this.#form.set(name, state);
    if (this.#view === "tokens") this.#form.set("logprobs", String(TOP_TOKENS));
    this.#writeCode();
  }

  #writeCode() {
    if (!this.#dialect) return;
    const format = byId("code-format").elements.format.value;
    byId("code").textContent = WRITERS[format](this.#dialect, this.#bodies()[0], readKey() !== "");
  }

  #setRunning(isRunning) {
    byId("stop").disabled = !isRunning;
  }

  #shortcut(event) {
    if (byId("key-dialog").open) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.generate();
    if (event.key === "Escape") this.#answers.stop();
  }

  #useKey() {
    this.#status.refresh();
    if (this.#dialects.length) this.#writeCode();
    else this.load();
  }

  #showNoForm(failure) {
    const isKeyMissing = failure.status === 401;
    byId("load-note").textContent = isKeyMissing ? "This server wants a key." : failure.message;
    if (isKeyMissing) askForKey(readKey() ? failure.message : "This server wants a key.");
  }
}

/** Tell a screen reader, once. */
function say(words) {
  byId("announcer").textContent = words;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    say("The browser does not let this page copy: it needs HTTPS or localhost.");
  }
}

new Page().start();
