"""The slots of the KV cache: which row holds which tokens, what can be reused, what must go.

A slot is one row of the KV buffers. The rows of decoding sequences are the first ones, without a
gap, so that a step can bind them as one view; every other row is prefilling, keeps a finished
prompt for reuse, or is free. Only what a prefill wrote is ever reused, so that reuse changes no
bit.

Pure bookkeeping: the arrays themselves are behind ``KVStore``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ortolan_runtime.events import TokenScore

Tokens = npt.NDArray[np.int64]

NOBODY = -1
# A prefill of one token on top of a past uses other kernels than one of many, so at least this many
# of a prompt's tokens are computed anew.
MIN_PREFILL = 2


class KVStore(Protocol):
    """The KV buffers, by row."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of row ``source`` to row ``target``."""

    def swap(self, one: int, one_length: int, other: int, other_length: int) -> None:
        """Exchange the contents of two rows."""

    def release(self, row: int, length: int) -> None:
        """Give the memory of row ``row`` beyond its first ``length`` tokens back."""


@dataclass(slots=True)
class PromptScores:
    """Scores of a prompt's tokens from the second on, each with ``count`` alternatives."""

    count: int
    items: list[TokenScore] = field(default_factory=list)


@dataclass(slots=True)
class Slot:
    """What one row holds: ``length`` tokens, the first ``prefilled`` of them written by a prefill.

    ``promised`` is how many tokens its owner was let in with; ``scores`` are those of the prompt,
    when a request asked for them.
    """

    owner: int = NOBODY
    prompt: Tokens = field(default_factory=lambda: np.empty(0, np.int64))
    salt: str = ""
    length: int = 0
    prefilled: int = 0
    promised: int = 0
    last_used: int = 0
    scores: PromptScores | None = None

    @property
    def is_free(self) -> bool:
        """Return whether the row holds nothing."""
        return self.owner == NOBODY and self.length == 0

    @property
    def is_cached(self) -> bool:
        """Return whether the row only keeps a finished prompt."""
        return self.owner == NOBODY and self.length > 0

    @property
    def committed(self) -> int:
        """Return the tokens that the row holds or was promised."""
        return max(self.length, self.promised)


@dataclass(slots=True, frozen=True)
class Match:
    """The row that shares most with a prompt: its first ``ready`` tokens are there."""

    row: int
    ready: int


class KVCache:
    """Rows, their owners, and the memory that they may take together.

    ``budget_tokens`` bounds the tokens in all rows; it must be at least one context.
    """

    def __init__(self, store: KVStore, *, rows: int, budget_tokens: int) -> None:
        self._store = store
        self._slots = [Slot() for _ in range(rows)]
        self._row_of: dict[int, int] = {}
        self._clock = 0
        self.budget_tokens = budget_tokens
        self.decoding_rows = 0  # rows 0 .. decoding_rows - 1 decode
        self.evictions = 0

    @property
    def used_tokens(self) -> int:
        """Return the tokens that all rows hold."""
        return sum(slot.length for slot in self._slots)

    @property
    def cached_tokens(self) -> int:
        """Return the tokens of finished prompts that wait to be reused."""
        return sum(slot.length for slot in self._slots if slot.is_cached)

    def row_of(self, owner: int) -> int:
        """Return the row of sequence ``owner``."""
        return self._row_of[owner]

    def length_of(self, owner: int) -> int:
        """Return how many tokens of sequence ``owner`` are in the cache."""
        return self._slots[self._row_of[owner]].length

    def best_match(
        self, prompt: Tokens, salt: str, scores: PromptScores | None = None
    ) -> Match | None:
        """Return the row whose prompt shares the longest beginning with ``prompt``, or None.

        With ``scores`` only tokens whose successor's score is known as well count.
        """
        best: Match | None = None
        for row, slot in enumerate(self._slots):
            if slot.salt != salt or slot.is_free:
                continue
            ready = _common_prefix(slot.prompt[: slot.prefilled], prompt)
            if scores is not None:
                ready = min(ready - 1, _known_scores(slot, scores))
            # What the prefill of a lone token wrote is for equal prompts alone.
            if ready < MIN_PREFILL and not len(slot.prompt) == len(prompt) == ready:
                continue
            if best is None or ready > best.ready:
                best = Match(row, ready)
        return best

    def will_share_more(
        self, owner: int, prompt: Tokens, salt: str, scores: PromptScores | None = None
    ) -> bool:
        """Return whether the prefill of ``owner`` will add to what ``prompt`` can reuse now."""
        slot = self._slots[self._row_of[owner]]
        if slot.salt != salt or (scores is not None and not _are_alike(slot.scores, scores)):
            return False
        coming = _common_prefix(slot.prompt, prompt)
        if coming < max(len(slot.prompt), len(prompt)):  # equal prompts share the last logits too
            coming = min(coming, len(prompt) - MIN_PREFILL)
        if scores is not None:
            coming = min(coming - 1, len(prompt) - MIN_PREFILL)
        match = self.best_match(prompt, salt, scores)
        return coming > max(slot.prefilled, 0 if match is None else match.ready)

    def acquire(
        self,
        owner: int,
        prompt: Tokens,
        salt: str,
        *,
        reuse: int,
        tokens: int,
        headroom: int = 0,
        scores: PromptScores | None = None,
    ) -> int | None:
        """Give ``owner`` a row that begins with up to ``reuse`` tokens of its prompt from
        elsewhere.

        ``tokens`` is what it is known to need, ``headroom`` what others must be left with;
        ``scores`` takes over the scores of what is reused. Returns how many tokens were reused, or
        None when there is no room now.
        """
        match = self.best_match(prompt, salt, scores) if reuse > 0 else None
        reused = 0 if match is None else min(match.ready, reuse)
        source = match.row if match is not None and reused else None
        row = self._place(tokens + headroom, reused, source)
        if row is None:
            return None
        if source is not None:
            _take_scores(scores, self._slots[source].scores, reused)
            if row != source:
                self._store.copy(source, row, reused)
                self._touch(self._slots[source])
            else:
                self._store.release(row, reused)
        self._slots[row] = Slot(
            owner=owner,
            prompt=prompt,
            salt=salt,
            length=reused,
            prefilled=reused,
            promised=tokens,
            scores=scores,
        )
        self._touch(self._slots[row])
        self._row_of[owner] = row
        return reused

    def extend_prefilled(self, owner: int, count: int) -> None:
        """Note that a prefill wrote ``count`` more tokens of ``owner``."""
        slot = self._slots[self._row_of[owner]]
        slot.length += count
        slot.prefilled = slot.length

    def extend_decoded(self, owner: int, count: int = 1) -> None:
        """Note that decode steps wrote ``count`` more tokens of ``owner``."""
        self._slots[self._row_of[owner]].length += count

    def start_decoding(self, owner: int) -> None:
        """Move ``owner`` behind the rows that decode already."""
        self._swap(self._row_of[owner], self.decoding_rows)
        self.decoding_rows += 1

    def decoding_owners(self) -> list[int]:
        """Return the sequences that decode, in the order of their rows."""
        return [slot.owner for slot in self._slots[: self.decoding_rows]]

    def finish(self, owner: int, *, keep: bool) -> None:
        """Take ``owner`` out; with ``keep``, what a prefill wrote stays for reuse."""
        row = self._row_of.pop(owner)
        if row < self.decoding_rows:
            self.decoding_rows -= 1
            self._slots[row].owner = NOBODY
            self._swap(row, self.decoding_rows)
            row = self.decoding_rows
        slot = self._slots[row]
        slot.owner, slot.promised = NOBODY, 0
        slot.length = slot.prefilled if keep else 0
        if slot.length == 0:
            self._slots[row] = Slot()
        else:
            slot.prompt = slot.prompt[: slot.length]
        self._store.release(row, slot.length)

    def reserve(self, tokens: int) -> bool:
        """Return whether ``tokens`` more fit, after dropping cached prompts as far as needed."""
        while self.used_tokens + tokens > self.budget_tokens:
            if not self._evict(None):
                return False
        return True

    def _place(self, tokens: int, reused: int, source: int | None) -> int | None:
        """Return a row for a prompt of ``tokens``, or None; cached prompts are dropped as needed.

        The row is ``source`` itself when that keeps a finished prompt which the new one continues,
        or when there is no room for both.
        """
        may_take_over = source is not None and self._slots[source].is_cached
        if source is not None and may_take_over and reused == self._slots[source].length:
            return source if self._make_room(tokens, beside=source) else None
        if self._make_room(tokens, spare=source):
            row = self._free_row(spare=source)
            if row is not None:
                return row
        if may_take_over and self._make_room(tokens, beside=source):
            return source
        return None

    def _make_room(
        self, tokens: int, *, spare: int | None = None, beside: int | None = None
    ) -> bool:
        """Return whether ``tokens`` fit beside all that was promised, dropping cached prompts.

        Row ``spare`` is not dropped; row ``beside`` neither, and its tokens do not count.
        """
        while True:
            promised = sum(s.committed for row, s in enumerate(self._slots) if row != beside)
            if promised + tokens <= self.budget_tokens:
                return True
            if not self._evict(spare if beside is None else beside):
                return False

    def _free_row(self, *, spare: int | None) -> int | None:
        while True:
            for row in range(self.decoding_rows, len(self._slots)):
                if self._slots[row].is_free:
                    return row
            if not self._evict(spare):
                return None

    def _evict(self, spare: int | None) -> bool:
        """Drop the cached prompt that was used longest ago, but not that in row ``spare``."""
        cached = [
            (slot.last_used, row)
            for row, slot in enumerate(self._slots)
            if slot.is_cached and row != spare
        ]
        if not cached:
            return False
        _, row = min(cached)
        self._slots[row] = Slot()
        self._store.release(row, 0)
        self.evictions += 1
        return True

    def _swap(self, one: int, other: int) -> None:
        if one == other:
            return
        slots = self._slots
        self._store.swap(one, slots[one].length, other, slots[other].length)
        slots[one], slots[other] = slots[other], slots[one]
        for row in (one, other):
            if slots[row].owner != NOBODY:
                self._row_of[slots[row].owner] = row

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock


def as_tokens(ids: Sequence[int]) -> Tokens:
    """Return token ids as int64 ``[n]``."""
    return np.array(ids, np.int64)


def _common_prefix(one: Tokens, other: Tokens) -> int:
    count = min(len(one), len(other))
    differs = one[:count] != other[:count]
    return int(differs.argmax()) if differs.any() else count


def _known_scores(slot: Slot, wanted: PromptScores) -> int:
    """Return how many scores of a row's prompt are of the kind that is wanted."""
    if slot.scores is None or not _are_alike(slot.scores, wanted):
        return 0
    return len(slot.scores.items)


def _are_alike(one: PromptScores | None, other: PromptScores) -> bool:
    return one is not None and one.count == other.count


def _take_scores(target: PromptScores | None, source: PromptScores | None, count: int) -> None:
    """Copy the first ``count`` scores that ``target`` has not yet."""
    if target is not None and source is not None:
        target.items.extend(source.items[len(target.items) : count])
