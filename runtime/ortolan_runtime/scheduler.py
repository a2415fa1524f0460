"""Which rows run next: pure logic over plain data, with no session in sight.

Every step is one prefill chunk or one decode step of all decoding rows. Between two decode steps at
most ``prefill_chunk`` prompt tokens are prefilled, which bounds how long running streams wait for a
newcomer. Prompts share the prefill in turn, so that a short one does not wait for a long one to
end. Admission is first come, first served. When memory runs short the youngest sequence is
preempted: it goes back to the queue and later computes its KV again, the prompt by prefill and its
output by decode steps, as it was computed at first, so that its bits do not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ortolan_runtime.kvcache import MIN_PREFILL, KVCache, PromptScores, Tokens, as_tokens
from ortolan_runtime.logits import Row

# A newcomer is let in when every running sequence could still grow by this much; without it, one
# that was preempted would come back at once only to be preempted again.
_GROWTH_TOKENS = 32


@dataclass(slots=True, eq=False)
class Work:
    """One sequence as the scheduler sees it.

    ``tokens`` are the prompt and what was generated so far; ``prompt_length`` of them are the
    prompt. ``scores_prompt`` says that the logits at every position of the prompt are wanted, with
    ``score_count`` alternatives: it bounds a chunk, and only scored tokens can be reused.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    salt: str = ""
    scores_prompt: bool = False
    score_count: int = 0
    cached_tokens: int = 0
    was_admitted: bool = False
    prompt: Tokens = field(init=False)
    scores: PromptScores | None = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = as_tokens(self.tokens[: self.prompt_length])
        self.scores = PromptScores(self.score_count) if self.scores_prompt else None


@dataclass(slots=True, frozen=True)
class PrefillStep:
    """Prefill ``count`` prompt tokens of ``work`` from position ``start`` on."""

    work: Work
    start: int
    count: int

    @property
    def is_last(self) -> bool:
        """Return whether the prompt is complete after this step."""
        return self.start + self.count == self.work.prompt_length


@dataclass(slots=True, frozen=True)
class ForkStep:
    """Begin to decode ``work`` from the logits that an equal prompt ended with."""

    work: Work
    logits: Row
    logsumexp: np.float32


@dataclass(slots=True, frozen=True)
class DecodeStep:
    """Decode one token of each of ``works``, which hold rows 0, 1, … in this order."""

    works: tuple[Work, ...]


Step = PrefillStep | ForkStep | DecodeStep


@dataclass(slots=True)
class _Ending:
    """The logits with which a prompt ended, kept for equal prompts that wait."""

    prompt: Tokens
    salt: str
    logits: Row
    logsumexp: np.float32


class Scheduler:
    """The queue and the running sequences.

    ``slots`` bounds how many sequences run at once, ``prefill_chunk`` the prompt tokens between two
    decode steps, ``scoring_chunk`` the tokens of a chunk whose every position is scored.
    """

    def __init__(
        self, cache: KVCache, *, slots: int, prefill_chunk: int, scoring_chunk: int
    ) -> None:
        self._cache = cache
        self.slots = slots
        self._prefill_chunk = prefill_chunk
        self._scoring_chunk = scoring_chunk
        self._credit = prefill_chunk
        self._waiting: deque[Work] = deque()
        self._prefilling: deque[Work] = deque()  # the next in turn first
        self._decoding: dict[int, Work] = {}
        self._endings: list[_Ending] = []
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        """Return how many sequences are queued."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Return how many sequences hold a slot."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to run."""
        return not (self._waiting or self._prefilling or self._decoding)

    def works(self) -> Iterable[Work]:
        """Return every sequence that has not ended."""
        return [*self._waiting, *self._prefilling, *self._decoding.values()]

    def add(self, work: Work) -> None:
        """Queue a sequence."""
        self._waiting.append(work)

    def next_step(self) -> Step | None:
        """Return what to run now, or None when there is nothing."""
        fork = self._admit()
        if fork is not None:
            return fork
        if self._prefilling and self._may_prefill():
            return self._prefill_step()
        self._credit = self._prefill_chunk
        return self._decode_step()

    def prefilled(self, step: PrefillStep, logits: Row, logsumexp: np.float32) -> None:
        """Note that ``step`` was run and left these logits, float32 ``[vocab]``, at its end."""
        work = step.work
        self._cache.extend_prefilled(work.id, step.count)
        self._credit -= step.count
        self._prefilling.remove(work)
        if not step.is_last:
            self._prefilling.append(work)
            return
        if any(self._are_equal(work, other) for other in self._waiting):
            kept = _Ending(work.prompt, work.salt, logits.copy(), logsumexp)
            self._endings.append(kept)
        self._begin_decoding(work)

    def decoded(self, step: DecodeStep) -> None:
        """Note that ``step`` was run."""
        for work in step.works:
            self._cache.extend_decoded(work.id)

    def may_speculate(self, step: DecodeStep, drafts: int) -> bool:
        """Return whether ``drafts`` more tokens of the only decoding row may be run with it.

        Not while a prompt waits for its turn. Cached prompts are dropped as for any step; what does
        not fit even so is not tried.
        """
        is_alone = len(step.works) == 1 and not self._prefilling and not self._waiting
        return is_alone and self.needs_logits(step.works[0]) and self._cache.reserve(1 + drafts)

    def speculated(self, step: DecodeStep, count: int) -> None:
        """Note that ``count`` tokens of the only row of ``step`` were run and are right."""
        self._cache.extend_decoded(step.works[0].id, count)

    def remove(self, work: Work) -> None:
        """Take out a sequence that has ended, in whatever state it is."""
        if work in self._waiting:
            self._waiting.remove(work)
        else:
            self._leave(work)
        self._endings = [e for e in self._endings if self._is_awaited(e)]

    def needs_logits(self, work: Work) -> bool:
        """Return whether the next decode step of ``work`` yields a token that it had not before."""
        return self._cache.length_of(work.id) + 1 == len(work.tokens)

    def _admit(self) -> ForkStep | None:
        """Give slots to those who wait; return a step when one can decode at once."""
        for work in list(self._waiting):
            if self.running >= self.slots:
                return None
            ending = self._ending_for(work)
            if ending is None and self._will_share_more_soon(work):
                continue
            limit = self._reuse_limit(work, has_ending=ending is not None)
            reused = self._cache.acquire(
                work.id,
                work.prompt,
                work.salt,
                reuse=limit,
                tokens=len(work.tokens),
                headroom=_GROWTH_TOKENS * self.running,
                scores=work.scores,
            )
            if reused is None:
                return None
            self._waiting.remove(work)
            if not work.was_admitted:
                work.cached_tokens, work.was_admitted = reused, True
            if ending is not None and reused == work.prompt_length:
                self._begin_decoding(work)
                return ForkStep(work, ending.logits, ending.logsumexp)
            self._prefilling.append(work)
        return None

    def _may_prefill(self) -> bool:
        """Return whether the next chunk is within what may go between two decode steps."""
        if not self._decoding or self._credit == self._prefill_chunk:
            return True
        work = self._prefilling[0]
        remaining = work.prompt_length - self._cache.length_of(work.id)
        return self._chunk(work, remaining) <= self._credit

    def _prefill_step(self) -> PrefillStep | None:
        work = self._prefilling[0]
        start = self._cache.length_of(work.id)
        count = self._chunk(work, work.prompt_length - start)
        while not self._cache.reserve(count):
            if self._preempt_youngest() is work:
                return None
        return PrefillStep(work, start, count)

    def _decode_step(self) -> DecodeStep | None:
        while self._decoding and not self._cache.reserve(len(self._decoding)):
            self._preempt_youngest()
        owners = self._cache.decoding_owners()
        return DecodeStep(tuple(self._decoding[owner] for owner in owners)) if owners else None

    def _chunk(self, work: Work, remaining: int) -> int:
        """Return how many tokens to prefill now; never 1, unless the whole prompt is one token."""
        limit = self._credit if self._decoding else self._prefill_chunk
        if work.scores_prompt:
            limit = min(limit, self._scoring_chunk)
        count = min(remaining, max(limit, MIN_PREFILL))
        # Two of a rest of three would leave one alone, so three go together.
        return (
            count if remaining - count != 1 else (count - 1 if count > MIN_PREFILL else remaining)
        )

    def _preempt_youngest(self) -> Work:
        running = [*self._prefilling, *self._decoding.values()]
        work = max(running, key=lambda w: w.id)
        self._leave(work)
        place = sum(other.id < work.id for other in self._waiting)
        self._waiting.insert(place, work)
        self.preemptions += 1
        return work

    def _leave(self, work: Work) -> None:
        if self._decoding.pop(work.id, None) is None:
            self._prefilling.remove(work)
        self._cache.finish(work.id, keep=True)

    def _begin_decoding(self, work: Work) -> None:
        self._cache.start_decoding(work.id)
        self._decoding[work.id] = work

    def _reuse_limit(self, work: Work, *, has_ending: bool) -> int:
        return work.prompt_length if has_ending else max(work.prompt_length - MIN_PREFILL, 0)

    def _ending_for(self, work: Work) -> _Ending | None:
        if work.scores_prompt:
            return None
        match = self._cache.best_match(work.prompt, work.salt)
        if match is None or match.ready < work.prompt_length:
            return None
        return next((e for e in self._endings if self._ends(e, work)), None)

    def _will_share_more_soon(self, work: Work) -> bool:
        """Return whether a running prefill is about to write more of this prompt."""
        return any(
            self._cache.will_share_more(other.id, work.prompt, work.salt, work.scores)
            for other in self._prefilling
        )

    def _is_awaited(self, ending: _Ending) -> bool:
        return any(self._ends(ending, work) for work in self._waiting)

    @staticmethod
    def _ends(ending: _Ending, work: Work) -> bool:
        return ending.salt == work.salt and np.array_equal(ending.prompt, work.prompt)

    @staticmethod
    def _are_equal(work: Work, other: Work) -> bool:
        return work.salt == other.salt and np.array_equal(work.prompt, other.prompt)
