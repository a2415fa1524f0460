// The panel of the server's state: asks once a second while somebody looks.

import { get } from "./client.js";
import { byId } from "./dom.js";
import { overview, parseMetrics, Rates } from "./metrics.js";

const EVERY_MS = 1000;
const POINTS = 60; // of the line, one a second
const COUNTER = "ortolan_generated_tokens_total";

/** The panel; `refresh` makes it ask again after another key was given. */
export class StatusPanel {
  #rates = new Rates();
  #line = [];
  #isRefused = false;

  /** Ask now and from now on. */
  async start() {
    for (;;) {
      if (!document.hidden) await this.#tick();
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    }
  }

  /** Ask for figures again. */
  refresh() {
    this.#isRefused = false;
  }

  async #tick() {
    await this.#showReady();
    if (this.#isRefused) return; // what was refused is not asked again and again
    try {
      const figures = parseMetrics(await (await get("metrics")).text());
      this.#rates.add(figures, performance.now());
      this.#show(overview(figures), this.#rates.perSecond(COUNTER));
      say("");
    } catch (failure) {
      this.#isRefused = failure.status >= 400 && failure.status < 500;
      say(failure.status === 401 ? "The figures want a key." : `No figures: ${failure.message}`);
    }
  }

  async #showReady() {
    const state = await get("ready").then(
      () => ["ready", "ready"],
      (failure) => (failure.status ? ["draining", "shutting down"] : ["gone", "no answer"]),
    );
    byId("state").dataset.state = state[0];
    byId("state-words").textContent = state[1];
  }

  #show(now, perSecond) {
    write("slots", `${now.running}`, `of ${now.slots}`);
    fill("slots-bar", now.running / now.slots);
    write("queue", `${now.waiting}`, "waiting");
    write("rate", perSecond.toFixed(perSecond > 0 && perSecond < 10 ? 1 : 0), "tokens/s");
    this.#draw(perSecond);
    write("kv", share((now.kvUsed + now.kvCached) / now.kvBudget), `of ${thousands(now.kvBudget)} tokens`);
    fill("kv-bar", now.kvUsed / now.kvBudget, now.kvCached / now.kvBudget);
    write("hits", now.prefixHits === null ? "—" : share(now.prefixHits), "of prompts");
    fill("hits-bar", now.prefixHits ?? 0);
  }

  #draw(perSecond) {
    this.#line = [...this.#line, perSecond].slice(-POINTS);
    const most = Math.max(...this.#line, 1);
    const points = this.#line.map((rate, i) => {
      const x = POINTS - this.#line.length + i;
      return `${x},${(19 - (rate / most) * 18).toFixed(1)}`;
    });
    byId("rate-line").setAttribute("points", points.join(" "));
  }
}

function write(id, figure, unit) {
  byId(`${id}-figure`).textContent = figure;
  byId(`${id}-unit`).textContent = unit;
}

function fill(id, first, second = 0) {
  byId(id).style.setProperty("--first", first.toFixed(4));
  byId(id).style.setProperty("--second", second.toFixed(4));
}

function say(words) {
  byId("status-note").textContent = words;
}

function share(part) {
  const percent = part * 100;
  if (percent > 0 && percent < 0.1) return "< 0.1 %";
  return `${percent > 0 && percent < 10 ? percent.toFixed(1) : percent.toFixed(0)} %`;
}

function thousands(number) {
  return number < 10000 ? String(number) : `${Math.round(number / 1000)}k`;
}
