// The server's figures: Prometheus's text read, and what it means for the panel.

const WINDOW_MS = 5000; // rates are means of so long

/** Return the sum of each metric's series by name. */
export function parseMetrics(text) {
  const figures = {};
  for (const line of text.split("\n")) {
    const match = /^([a-z_:][\w:]*)(?:\{[^}]*\})? (\S+)/i.exec(line);
    if (match) figures[match[1]] = (figures[match[1]] ?? 0) + Number(match[2]);
  }
  return figures;
}

/** Remembers figures for a while and tells the rate of a counter. */
export class Rates {
  #samples = [];

  /** Take the figures of a moment, in milliseconds. */
  add(figures, at) {
    this.#samples.push({ figures, at });
    while (this.#samples.length > 2 && at - this.#samples[1].at >= WINDOW_MS) this.#samples.shift();
  }

  /** Return how much a counter grew each second; a new model's counters begin at 0. */
  perSecond(name) {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    const seconds = (last.at - first.at) / 1000;
    const grown = last.figures[name] - first.figures[name];
    return seconds > 0 ? Math.max(grown, 0) / seconds : 0;
  }
}

/** Return what the panel shows of figures. Shares are within 0..1; null where nothing was asked. */
export function overview(figures) {
  const cached = figures.ortolan_cached_prompt_tokens_total;
  const prompts = cached + figures.ortolan_prompt_tokens_total;
  return {
    slots: figures.ortolan_slots,
    running: figures.ortolan_running_sequences,
    waiting: figures.ortolan_waiting_sequences,
    kvUsed: figures.ortolan_kv_used_tokens,
    kvCached: figures.ortolan_kv_cached_tokens,
    kvBudget: figures.ortolan_kv_budget_tokens,
    prefixHits: prompts > 0 ? cached / prompts : null,
  };
}
