// The answers: requests that run side by side, and a card for each of their choices.

import { Card } from "./cards.js";
import { Run } from "./run.js";
import { parseNumber } from "./values.js";

/** The answers to the last press of the button; an earlier one is stopped by the next. */
export class Answers {
  #runs = [];
  #cards = [];
  #stopper = null;
  #view = "text";
  #isDrawing = false;

  /** `acts` are what the buttons of cards do, `ended` is called with the runs when all are over. */
  constructor(container, alternatives, acts, ended) {
    this.container = container;
    this.alternatives = alternatives;
    this.acts = acts;
    this.ended = ended;
  }

  /** Send a request for each body and show what comes. */
  async send(dialect, bodies) {
    this.stop();
    const stopper = new AbortController();
    const runs = bodies.map((body) => new Run(dialect, body));
    [this.#stopper, this.#runs] = [stopper, runs];
    this.#cards = runs.map((run) => this.#card(run, 0));
    this.container.replaceChildren(...this.#cards.map((card) => card.node));
    this.container.dataset.count = runs.length;
    this.#draw();
    await Promise.all(runs.map((run) => run.go(stopper.signal, () => this.#draw())));
    if (this.#runs === runs) this.ended(runs);
  }

  /** Stop what runs; the server frees its slots. */
  stop() {
    this.#stopper?.abort();
  }

  /** Send what was sent once more, with the seeds that were used and this many logprobs. */
  sendAgain(logprobs) {
    const bodies = this.#runs.map((run) => ({ ...run.body, seed: parseNumber(run.seed), logprobs }));
    return this.send(this.#runs[0].dialect, bodies);
  }

  /** Show text or tokens. */
  set view(view) {
    this.#view = view;
    this.#draw();
  }

  #card(run, index) {
    return new Card(run, index, this.alternatives, this.acts);
  }

  /** Draw at the next frame, however many pieces come until then. */
  #draw() {
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      this.#addCards();
      for (const card of this.#cards) card.render(this.#view);
    });
  }

  /** Add cards for choices beyond a run's first, after the others of their run. */
  #addCards() {
    for (const run of this.#runs) {
      const own = this.#cards.filter((card) => card.run === run);
      for (let index = own.length; index < run.choices.length; index += 1) {
        const card = this.#card(run, index);
        this.#cards.splice(this.#cards.indexOf(own.at(-1)) + 1, 0, card);
        own.at(-1).node.after(card.node);
        own.push(card);
      }
    }
  }
}
