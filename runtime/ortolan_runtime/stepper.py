"""One step of the engine: run what the scheduler chose, sample, and turn tokens into events.

Runs in the engine's thread alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ortolan_runtime.events import Ending, Event
from ortolan_runtime.kvcache import KVCache
from ortolan_runtime.model import Logits, Model, Output
from ortolan_runtime.params import GenerationRequest
from ortolan_runtime.sampling import sample
from ortolan_runtime.scheduler import DecodeStep, ForkStep, PrefillStep, Scheduler, Work
from ortolan_runtime.sequence import Sequence as GeneratedSequence
from ortolan_runtime.text import Tokenizer

logger = logging.getLogger("ortolan.engine")

Arrivals = Sequence[tuple[int, GenerationRequest]]
Events = list[tuple[int, Event]]

_UNREADABLE = "the prompt could not be taken in"
_UNDRAWN = "the next token could not be drawn"
_NOT_A_NUMBER = "the model's output is not a number"


class Statistics(msgspec.Struct, kw_only=True):
    """What the engine has done and what it holds; times in seconds, counts since the start."""

    slots: int = 0
    running: int = 0
    waiting: int = 0
    kv_budget_tokens: int = 0
    kv_used_tokens: int = 0
    kv_cached_tokens: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    preemptions: int = 0
    evictions: int = 0
    model_s: float = 0.0
    step_s: float = 0.0


class Stepper:
    """Owns the sequences; no method raises for the sake of one of them."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, cache: KVCache, scheduler: Scheduler
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._cache = cache
        self._scheduler = scheduler
        self._sequences: dict[int, GeneratedSequence] = {}
        self._events: Events = []
        self.slots = scheduler.slots
        self.statistics = Statistics(slots=self.slots, kv_budget_tokens=cache.budget_tokens)

    @property
    def is_idle(self) -> bool:
        """Return whether a step would do nothing."""
        return self._scheduler.is_idle and not self._events

    def add_all(self, arrivals: Arrivals) -> None:
        """Take new sequences in."""
        for id, request in arrivals:
            try:
                sequence = GeneratedSequence(id, request, self._tokenizer)
            except Exception:
                logger.exception("sequence %d could not be made", id)
                ending = Ending(reason="error", completion_tokens=0, error=_UNREADABLE)
                self._events.append((id, Event(ending=ending)))
                continue
            if request.max_tokens == 0 and request.prompt_logprobs is None:
                self._events.append((id, sequence.finish("length")))
                continue
            self._sequences[id] = sequence
            self._scheduler.add(sequence.work)

    def cancel(self, id: int) -> None:
        """End one sequence, if it has not ended."""
        sequence = self._sequences.get(id)
        if sequence is not None:
            self._end(sequence, sequence.finish("cancelled"))

    def cancel_all(self) -> None:
        """End every sequence."""
        for id in list(self._sequences):
            self.cancel(id)

    def step(self) -> Events:
        """Run one step and return the events since the last one."""
        started = time.perf_counter()
        step = self._scheduler.next_step()
        match step:
            case PrefillStep():
                self._prefill(step)
            case DecodeStep():
                self._decode(step)
            case ForkStep():
                self._fork(step)
        self._count(time.perf_counter() - started)
        events, self._events = self._events, []
        return events

    def _prefill(self, step: PrefillStep) -> None:
        sequence = self._sequences[step.work.id]
        tokens = step.work.prompt[step.start : step.start + step.count]
        positions = np.arange(step.count) if step.work.scores_prompt else np.array([step.count - 1])
        row = self._cache.row_of(step.work.id)
        output = self._guarded(
            [step.work], lambda: self._run(self._model.prefill, row, tokens, step.start, positions)
        )
        if output is None:
            return
        self.statistics.prefill_steps += 1
        self.statistics.prompt_tokens += step.count
        self._scheduler.prefilled(step, output.logits[-1], output.logsumexp[-1])
        if step.work.scores_prompt:
            sequence.score_prompt(step.start, output.logits, output.logsumexp)
        if step.is_last:
            self._begin(sequence, output.logits[-1:], output.logsumexp[-1:])

    def _fork(self, step: ForkStep) -> None:
        sequence = self._sequences[step.work.id]
        self._begin(sequence, step.logits[None, :], np.array([step.logsumexp], np.float32))

    def _begin(
        self, sequence: GeneratedSequence, logits: Logits, logsumexp: npt.NDArray[np.float32]
    ) -> None:
        """Take the first token of a sequence whose prompt is complete."""
        if sequence.has_begun:  # it was preempted and has its tokens already
            return
        self.statistics.cached_prompt_tokens += sequence.work.cached_tokens
        self._events.append((sequence.id, sequence.begin()))
        if sequence.request.max_tokens == 0:
            self._end(sequence, sequence.finish("length"))
            return
        self._take_tokens([sequence], logits, logsumexp)

    def _decode(self, step: DecodeStep) -> None:
        works = step.works
        lengths = [self._cache.length_of(work.id) for work in works]
        tokens = np.array([w.tokens[n] for w, n in zip(works, lengths, strict=True)], np.int64)
        past = np.array(lengths, np.int32)
        output = self._guarded(works, lambda: self._run(self._model.decode, tokens, past))
        if output is None:
            return
        self.statistics.decode_steps += 1
        wanted = [i for i, work in enumerate(works) if self._scheduler.needs_logits(work)]
        self._scheduler.decoded(step)
        if len(wanted) < len(works):  # some catch up on tokens from before their preemption
            output = Output(output.logits[wanted], output.logsumexp[wanted])
        sequences = [self._sequences[works[i].id] for i in wanted]
        self._take_tokens(sequences, output.logits, output.logsumexp)

    def _take_tokens(
        self,
        sequences: Sequence[GeneratedSequence],
        logits: Logits,
        logsumexp: npt.NDArray[np.float32],
    ) -> None:
        """Sample one token for each sequence and tell of it."""
        if not sequences:
            return
        drawn = self._draw(sequences, logits, logsumexp)
        for i, (sequence, token) in enumerate(zip(sequences, drawn, strict=True)):
            if isinstance(token, str):
                self._fail(sequence, token)
                continue
            try:
                event = sequence.push(token, logits[i], logsumexp[i])
            except Exception:
                logger.exception("sequence %d failed", sequence.id)
                self._fail(sequence, "the text could not be decoded")
                continue
            self.statistics.generated_tokens += 1
            self._tell(sequence, event)

    def _draw(
        self,
        sequences: Sequence[GeneratedSequence],
        logits: Logits,
        logsumexp: npt.NDArray[np.float32],
    ) -> list[int | str]:
        """Return the next token of each sequence, or what went wrong with it.

        Rows are independent, so when one of them raises, each is drawn alone.
        """
        try:
            sampled = sample(logits, logsumexp, [s.sampling_state() for s in sequences])
        except Exception:
            if len(sequences) == 1:
                logger.exception("sequence %d could not be sampled", sequences[0].id)
                return [_UNDRAWN]
            rows = [slice(i, i + 1) for i in range(len(sequences))]
            return [self._draw(sequences[r], logits[r], logsumexp[r])[0] for r in rows]
        pairs = zip(sampled.tokens.tolist(), sampled.is_valid, strict=True)
        return [token if is_valid else _NOT_A_NUMBER for token, is_valid in pairs]

    def _tell(self, sequence: GeneratedSequence, event: Event) -> None:
        if event.ending is not None:
            self._end(sequence, event)
        else:
            self._events.append((sequence.id, event))

    def _end(self, sequence: GeneratedSequence, event: Event) -> None:
        del self._sequences[sequence.id]
        self._scheduler.remove(sequence.work)
        self._events.append((sequence.id, event))

    def _fail(self, sequence: GeneratedSequence, error: str) -> None:
        self._end(sequence, sequence.fail(error))

    def _guarded(self, works: Sequence[Work], run: Callable[[], Output]) -> Output | None:
        """Run a step; when the session refuses it, end the sequences in it and return None."""
        try:
            return run()
        except Exception:
            logger.exception("a step of %d rows failed", len(works))
            for work in works:
                self._fail(self._sequences[work.id], "the model could not run")
            return None

    def _run(self, run: Callable[..., Output], *arguments: Any) -> Output:
        started = time.perf_counter()
        try:
            return run(*arguments)
        finally:
            self.statistics.model_s += time.perf_counter() - started

    def _count(self, step_s: float) -> None:
        statistics, cache = self.statistics, self._cache
        statistics.step_s += step_s
        statistics.running = self._scheduler.running
        statistics.waiting = self._scheduler.waiting
        statistics.kv_used_tokens = cache.used_tokens
        statistics.kv_cached_tokens = cache.cached_tokens
        statistics.preemptions = self._scheduler.preemptions
        statistics.evictions = cache.evictions
