"""One step of the engine: run what the scheduler chose, sample, and turn tokens into events.

Runs in the engine's thread alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from ortolan_runtime.events import Ending, Event, FinishReason
from ortolan_runtime.kvcache import KVCache, Tokens
from ortolan_runtime.logits import Logits, LogSumExp, Output
from ortolan_runtime.model import Model
from ortolan_runtime.params import GenerationRequest
from ortolan_runtime.sampling import sample
from ortolan_runtime.scheduler import DecodeStep, ForkStep, PrefillStep, Scheduler
from ortolan_runtime.sequence import Sequence as GeneratedSequence
from ortolan_runtime.speculation import SpeculationPolicy
from ortolan_runtime.text import Tokenizer

logger = logging.getLogger("ortolan.engine")

Arrivals = Sequence[tuple[int, GenerationRequest]]
Events = list[tuple[int, Event]]

_UNREADABLE = "the prompt could not be taken in"
_UNDRAWN = "the next token could not be drawn"
_NOT_A_NUMBER = "the model's output is not a number"
_UNFINISHED = "the text could not be finished"
_NOT_RUN = "the model could not run"


class Statistics(msgspec.Struct, kw_only=True):
    """What the engine has done and what it holds; times in seconds, counts since the start.

    ``prompt_tokens`` were prefilled, ``cached_prompt_tokens`` reused; ``drafted_tokens`` were
    guessed ahead and ``accepted_tokens`` of them right. Of ``prefill_s`` and ``decode_s``, the time
    in steps of either kind, ``prefill_model_s`` and ``decode_model_s`` were spent in the model.
    """

    slots: int = 0
    running: int = 0
    waiting: int = 0
    kv_budget_tokens: int = 0
    kv_used_tokens: int = 0
    kv_cached_tokens: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    preemptions: int = 0
    evictions: int = 0
    prefill_s: float = 0.0
    prefill_model_s: float = 0.0
    decode_s: float = 0.0
    decode_model_s: float = 0.0


@dataclass(slots=True, frozen=True)
class _Rows:
    """The output of a decode step, and the places of the rows that have none."""

    output: Output
    failed: frozenset[int]


class Stepper:
    """Owns the sequences; no method raises for the sake of one of them."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        cache: KVCache,
        scheduler: Scheduler,
        speculation: SpeculationPolicy | None = None,
    ) -> None:
        self._model = model
        self._speculation = speculation
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
                self._events.append((id, self._finished(sequence, "length")))
                continue
            self._sequences[id] = sequence
            self._scheduler.add(sequence.work)

    def cancel(self, id: int) -> None:
        """End one sequence, if it has not ended."""
        sequence = self._sequences.get(id)
        if sequence is not None:
            self._end(sequence, self._finished(sequence, "cancelled"))

    def cancel_all(self) -> None:
        """End every sequence."""
        for id in list(self._sequences):
            self.cancel(id)

    def take_events(self) -> Events:
        """Return the events since this was called last."""
        events, self._events = self._events, []
        return events

    def step(self) -> None:
        """Run one step, if there is anything to run."""
        started = time.perf_counter()
        step = self._scheduler.next_step()
        match step:
            case PrefillStep():
                self._prefill(step)
                self.statistics.prefill_s += time.perf_counter() - started
            case DecodeStep():
                self._decode(step)
                self.statistics.decode_s += time.perf_counter() - started
            case ForkStep():
                self._fork(step)
        self._gauge()

    def _prefill(self, step: PrefillStep) -> None:
        sequence = self._sequences[step.work.id]
        tokens = step.work.prompt[step.start : step.start + step.count]
        positions = np.arange(step.count) if step.work.scores_prompt else np.array([step.count - 1])
        row = self._cache.row_of(step.work.id)
        started = time.perf_counter()
        try:
            output = self._model.prefill(row, tokens, step.start, positions)
        except Exception:
            logger.exception("a prefill of %d tokens failed", step.count)
            self._fail(sequence, _NOT_RUN)
            return
        self.statistics.prefill_model_s += time.perf_counter() - started
        self.statistics.prefill_steps += 1
        self.statistics.prompt_tokens += step.count
        sequence.prefilled += step.count
        self._scheduler.prefilled(step, output.logits[-1], output.logsumexp[-1])
        if step.work.scores_prompt:
            sequence.score_prompt(step.start, output.logits, output.logsumexp)
        if step.is_last:
            self._begin(sequence, output.logits[-1:], output.logsumexp[-1:])

    def _fork(self, step: ForkStep) -> None:
        sequence = self._sequences[step.work.id]
        self._begin(sequence, step.logits[None, :], np.array([step.logsumexp], np.float32))

    def _begin(self, sequence: GeneratedSequence, logits: Logits, logsumexp: LogSumExp) -> None:
        """Take the first token of a sequence whose prompt is complete."""
        if sequence.has_begun:  # it was preempted and has its tokens already
            return
        self.statistics.cached_prompt_tokens += sequence.work.cached_tokens
        try:
            event = sequence.begin()
        except Exception:
            logger.exception("the prompt of sequence %d could not be told", sequence.id)
            self._fail(sequence, _UNREADABLE)
            return
        self._events.append((sequence.id, event))
        if sequence.request.max_tokens == 0:
            self._end(sequence, self._finished(sequence, "length"))
            return
        self._take_tokens([sequence], logits, logsumexp)

    def _decode(self, step: DecodeStep) -> None:
        if self._speculation is not None and len(step.works) == 1:
            drafts = self._drafts(step)
            if drafts:
                self._verify(step, drafts)
                return
        works = step.works
        lengths = [self._cache.length_of(work.id) for work in works]
        tokens = np.array([w.tokens[n] for w, n in zip(works, lengths, strict=True)], np.int64)
        rows = self._run_rows(tokens, np.array(lengths, np.int32))
        self.statistics.decode_steps += 1
        is_wanted = [self._scheduler.needs_logits(work) for work in works]
        self._scheduler.decoded(step)
        sequences = [self._sequences[work.id] for work in works]
        for i in rows.failed:
            self._fail(sequences[i], _NOT_RUN)
        # Rows without a wish catch up on tokens from before their preemption.
        chosen = [i for i in range(len(works)) if is_wanted[i] and i not in rows.failed]
        output = rows.output
        if len(chosen) < len(works):
            output = Output(output.logits[chosen], output.logsumexp[chosen])
        self._take_tokens([sequences[i] for i in chosen], output.logits, output.logsumexp)

    def _run_rows(self, tokens: Tokens, past: npt.NDArray[np.int32]) -> _Rows:
        """Run one token of each decoding row; when that fails, find out which row it is."""
        started = time.perf_counter()
        try:
            output = self._model.decode(tokens, past)
        except Exception:
            logger.exception("a decode step of %d rows failed", len(tokens))
            return self._run_rows_alone(tokens, past)
        seconds = time.perf_counter() - started
        self.statistics.decode_model_s += seconds
        if self._speculation is not None and len(tokens) == 1:
            self._speculation.note_plain(seconds)
        return _Rows(output, frozenset())

    def _run_rows_alone(self, tokens: Tokens, past: npt.NDArray[np.int32]) -> _Rows:
        """Run each row by itself in the place of the first, which changes no bit of it.

        What the failed step wrote is at the place that this one writes.
        """
        count, failed = len(tokens), set()
        logits = np.zeros((count, self._model.vocab_size), np.float32)
        logsumexp = np.zeros(count, np.float32)
        for i in range(count):
            first, length = int(past[0]), int(past[i])
            if i > 0:
                self._model.swap(0, first + 1, i, length)
            try:
                output = self._model.decode(tokens[i : i + 1], past[i : i + 1])
                logits[i], logsumexp[i] = output.logits[0], output.logsumexp[0]
            except Exception:
                failed.add(i)
            if i > 0:
                self._model.swap(0, length + 1, i, first + 1)
        return _Rows(Output(logits, logsumexp), frozenset(failed))

    def _drafts(self, step: DecodeStep) -> list[int]:
        """Return tokens to guess after the next one of the only decoding sequence."""
        assert self._speculation is not None, "drafts are made for speculation"
        work = step.works[0]
        sequence = self._sequences[work.id]
        room = min(sequence.remaining_tokens - 1, self._model.length - len(work.tokens))
        count = min(self._speculation.draft_length(), room)
        if count < 1:
            return []
        drafts = sequence.lookup.draft(count)
        return drafts if drafts and self._scheduler.may_speculate(step, len(drafts)) else []

    def _verify(self, step: DecodeStep, drafts: list[int]) -> None:
        """Run guesses along with the next token, and keep those that sampling chooses too."""
        assert self._speculation is not None, "guesses are made for speculation"
        sequence = self._sequences[step.works[0].id]
        past = self._cache.length_of(sequence.id)
        tokens = np.array([sequence.work.tokens[past], *drafts], np.int64)
        started = time.perf_counter()
        try:
            output = self._model.verify(tokens, past)
        except Exception:
            logger.exception("a step of %d guesses failed", len(drafts))
            self._fail(sequence, _NOT_RUN)
            return
        seconds = time.perf_counter() - started
        accepted = self._accept(sequence, drafts, output)
        if sequence.id in self._sequences:
            self._scheduler.speculated(step, 1 + accepted)
        self._speculation.note_guess(drafted=len(drafts), accepted=accepted, seconds=seconds)
        self.statistics.decode_model_s += seconds
        self.statistics.decode_steps += 1
        self.statistics.drafted_tokens += len(drafts)
        self.statistics.accepted_tokens += accepted

    def _accept(self, sequence: GeneratedSequence, drafts: list[int], output: Output) -> int:
        """Sample on from each guess while it is right; return how many were."""
        for i in range(len(drafts) + 1):
            row = slice(i, i + 1)
            self._take_tokens([sequence], output.logits[row], output.logsumexp[row])
            has_ended = sequence.id not in self._sequences
            if has_ended or i == len(drafts) or sequence.work.tokens[-1] != drafts[i]:
                return i
        raise AssertionError("the last round returns")

    def _take_tokens(
        self,
        sequences: Sequence[GeneratedSequence],
        logits: Logits,
        logsumexp: LogSumExp,
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
        logsumexp: LogSumExp,
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

    def _finished(self, sequence: GeneratedSequence, reason: FinishReason) -> Event:
        """Return the last event of a sequence at an ending that no token brought about."""
        try:
            return sequence.finish(reason)
        except Exception:
            logger.exception("the text of sequence %d could not be finished", sequence.id)
            return sequence.fail(_UNFINISHED)

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

    def _gauge(self) -> None:
        statistics, cache = self.statistics, self._cache
        statistics.running = self._scheduler.running
        statistics.waiting = self._scheduler.waiting
        statistics.kv_used_tokens = cache.used_tokens
        statistics.kv_cached_tokens = cache.cached_tokens
        statistics.preemptions = self._scheduler.preemptions
        statistics.evictions = cache.evictions
