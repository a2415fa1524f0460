"""What changes a row's logits before temperature: bias, allowed and banned tokens, penalties."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ortolan_runtime.logits import Ids, Row
from ortolan_runtime.params import SamplingParams

# Bounds within which edited logits, divided by the least temperature, are finite float32 numbers.
_MOST_BIAS = 1e20
_LEAST_REPETITION = 1e-6


@dataclass(slots=True)
class TokenCounts:
    """How often each token occurred in one sequence's output, and which occurred in its prompt.

    ``seen`` holds the tokens of either once, as int64, so that a step need not gather them.
    """

    output: dict[int, int] = field(default_factory=dict)
    prompt: frozenset[int] = frozenset()
    seen: array[int] = field(init=False)

    def __post_init__(self) -> None:
        self.seen = array("q", self.prompt | self.output.keys())

    def add(self, token: int) -> None:
        """Count one generated token."""
        if token not in self.output and token not in self.prompt:
            self.seen.append(token)
        self.output[token] = self.output.get(token, 0) + 1


@dataclass(slots=True)
class RowState:
    """What sampling knows of one row: its parameters, its history and what is banned right now."""

    params: SamplingParams
    counts: TokenCounts
    draw: float  # the number in [0, 1) that the next token is drawn with
    tokens: Sequence[int] = ()  # prompt and output, for bad words
    banned: Sequence[int] = ()  # end tokens while fewer than min_tokens are there


def has_adjustments(row: RowState) -> bool:
    """Return whether anything changes the row's logits before temperature."""
    p = row.params
    return bool(
        row.banned
        or p.logit_bias
        or p.allowed_token_ids
        or p.bad_words
        or p.repetition_penalty != 1.0
        or (row.counts.output and (p.frequency_penalty or p.presence_penalty))
    )


def adjust(logits: Row, row: RowState) -> None:
    """Apply bias, bans and penalties to one row, float32 ``[vocab]``, in place."""
    params = row.params
    if params.logit_bias:
        ids = np.fromiter(params.logit_bias.keys(), np.int64)
        bias = np.fromiter(params.logit_bias.values(), np.float64)
        logits[ids] += np.clip(bias, -_MOST_BIAS, _MOST_BIAS).astype(np.float32)
    if params.allowed_token_ids:
        _allow_only(logits, np.array(params.allowed_token_ids, np.int64))
    banned = [*row.banned, *_bad_word_ends(params.bad_words, row.tokens)]
    _ban(logits, banned)
    _penalise(logits, params, row.counts)


def _allow_only(logits: Row, allowed: Ids) -> None:
    """Rule out all other tokens; if the model rules these out too, they are equally likely."""
    kept = logits[allowed]
    if not np.isfinite(kept.max()):
        kept[:] = 0.0
    logits.fill(-np.inf)
    logits[allowed] = kept


def _ban(logits: Row, banned: Sequence[int]) -> None:
    """Rule tokens out, unless nothing at all would be left."""
    if not banned:
        return
    ids = np.array(banned, np.int64)
    kept = logits[ids]
    logits[ids] = -np.inf
    if not np.isfinite(logits.max()):
        logits[ids] = kept


def _bad_word_ends(words: Sequence[tuple[int, ...]], tokens: Sequence[int]) -> list[int]:
    """Return the tokens that would complete a banned sequence of tokens."""
    ends = []
    for word in words:
        beginning = word[:-1]
        if not beginning or tuple(tokens[-len(beginning) :]) == beginning:
            ends.append(word[-1])
    return ends


def _penalise(logits: Row, params: SamplingParams, counts: TokenCounts) -> None:
    """Apply the three penalties to one row, float32 ``[vocab]``, in place.

    Repetition divides positive logits and multiplies negative ones, for tokens of prompt and
    output: Keskar et al., 2019, arXiv:1909.05858. Frequency and presence are subtracted, for output
    tokens: OpenAI's API reference.
    """
    if params.repetition_penalty != 1.0:
        seen = np.array(counts.seen)
        values = logits[seen]
        factor = np.float32(max(params.repetition_penalty, _LEAST_REPETITION))
        logits[seen] = np.where(values > 0, values / factor, values * factor)
    if counts.output and (params.frequency_penalty or params.presence_penalty):
        ids = np.fromiter(counts.output.keys(), np.int64)
        times = np.fromiter(counts.output.values(), np.float32)
        penalty = params.frequency_penalty * times + params.presence_penalty
        logits[ids] -= penalty.astype(np.float32)
