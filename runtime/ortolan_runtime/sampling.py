"""From logits to tokens: penalties, truncation and the draw, for all rows of a step at once.

The order is: bias and bans, penalties, temperature, top_k, top_p, min_p, draw. Reported logprobs
are those of the raw logits. A row's result depends on that row alone, bit for bit, whatever its
batch.

The vocabulary is never sorted: a row is cut to its likeliest tokens first, and looked at whole only
when these turn out not to hold the probability mass that decides the draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ortolan_runtime.params import SamplingParams
from ortolan_runtime.randomness import uniforms

Logits = npt.NDArray[np.float32]  # [rows, vocab]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

# How many of a row's likeliest tokens are looked at first. 256 hold over 95 % of the mass of real
# models' rows at temperature 1; the rest of the rows take the slow way.
CANDIDATES = 256
# Columns of a block whose maximum stands for it when candidates are searched.
_BLOCK = 64
# float32 sums of the graph against float64 sums here: relative slack for "the decision is clear".
_MASS_SLACK = 1e-5
# Bounds within which edited logits, divided by the least temperature, are finite float32 numbers.
_MOST_BIAS = 1e20
_LEAST_REPETITION = 1e-6


@dataclass(slots=True)
class Sampled:
    """The outcome of one step: token ids int64 ``[rows]``; ``is_valid`` is False for a NaN row."""

    tokens: Ids
    is_valid: npt.NDArray[np.bool_]


@dataclass(slots=True)
class TokenCounts:
    """How often each token occurred in one sequence's output, and which occurred in its prompt."""

    output: dict[int, int] = field(default_factory=dict)
    prompt: frozenset[int] = frozenset()

    def add(self, token: int) -> None:
        """Count one generated token."""
        self.output[token] = self.output.get(token, 0) + 1


@dataclass(slots=True)
class RowState:
    """What sampling knows of one row: its parameters, its history and what is banned right now."""

    params: SamplingParams
    counts: TokenCounts
    position: int  # how many tokens were generated before this one
    tail: Sequence[int] = ()  # prompt and output, for bad words
    banned: Sequence[int] = ()  # end tokens while fewer than min_tokens are there


def sample(logits: Logits, logsumexp: npt.NDArray[np.float32], rows: Sequence[RowState]) -> Sampled:
    """Choose the next token of each row.

    ``logits`` is float32 ``[rows, vocab]`` and unchanged afterwards; ``logsumexp`` float32
    ``[rows]`` is of the raw logits. A row with NaN gets token 0 and ``is_valid`` False.
    """
    tokens = logits.argmax(axis=1)
    # argmax returns the place of a NaN where there is one; +inf is as useless as NaN.
    likeliest = logits[np.arange(len(rows)), tokens]
    is_valid = np.isfinite(likeliest) & np.isfinite(logsumexp)
    drawn = [i for i, row in enumerate(rows) if is_valid[i] and not _is_plain_greedy(row)]
    if drawn:
        draws = _draws([rows[i] for i in drawn])
        for i, draw in zip(drawn, draws, strict=True):
            tokens[i] = _sample_row(logits[i], float(logsumexp[i]), rows[i], float(draw))
    tokens[~is_valid] = 0
    return Sampled(tokens, is_valid)


def logprobs_of(
    logits: Logits, logsumexp: npt.NDArray[np.float32], tokens: Ids
) -> npt.NDArray[np.float32]:
    """Return the raw logprob of one token a row, float32 ``[rows]``."""
    chosen: npt.NDArray[np.float32] = logits[np.arange(len(tokens)), tokens] - logsumexp
    return chosen


def top_logprobs(row: Logits, logsumexp: np.float32, count: int) -> list[tuple[int, float]]:
    """Return the ``count`` likeliest (id, raw logprob) of one row of logits, best first.

    The numbers are those of ``logprobs_of``, bit for bit; of equal logits the lower id comes first.
    """
    if count == 0:
        return []
    ids = _likeliest(row, min(count, len(row)))
    return [(int(id), float(row[id] - logsumexp)) for id in ids]


def _is_plain_greedy(row: RowState) -> bool:
    return row.params.is_greedy and not _edits(row)


def _draws(rows: Sequence[RowState]) -> npt.NDArray[np.float64]:
    """Return the uniform numbers of the rows' next tokens, float64 ``[rows]``."""
    seeds, choices, positions = (
        np.array(values, np.int64)
        for values in zip(
            *((r.params.seed, r.params.choice, r.position) for r in rows), strict=True
        )
    )
    return uniforms(seeds, choices, positions)


def _sample_row(raw: Logits, logsumexp: float, row: RowState, draw: float) -> int:
    """Return the token of one row; ``raw`` is float32 ``[vocab]``."""
    params = row.params
    logits, mass_is_known = raw, True
    if _edits(row):
        logits, mass_is_known = _edited(raw, row), False
    if params.is_greedy:
        return int(logits.argmax())
    count = min(len(logits), max(CANDIDATES, params.top_k))
    ids = _likeliest(logits, count)
    scaled = logits[ids].astype(np.float64)
    top = scaled[0]
    weights = np.exp((scaled - top) / params.temperature)
    if params.top_k:
        weights = weights[: params.top_k]
        total = float(weights.sum())
        return int(ids[_pick(weights, total, params, draw)])
    if count == len(logits):
        return int(ids[_pick(weights, float(weights.sum()), params, draw)])
    if mass_is_known:
        index = _pick_if_clear(weights, _tail_bounds(scaled, logsumexp, params), params, draw)
        if index is not None:
            return int(ids[index])
    return _sample_whole_row(logits, ids, weights, params, draw)


def _sample_whole_row(
    logits: Logits, ids: Ids, head: Floats, params: SamplingParams, draw: float
) -> int:
    """Return the token when the candidates ``ids`` with weights ``head`` alone do not decide it.

    Mass adds up in the same order as everywhere: the candidates, likeliest first, then the others
    by id; so a draw means the same token whichever way it was found.
    """
    scaled = (logits - logits[ids[0]]) / np.float32(params.temperature)
    tail = np.exp(scaled, out=scaled)
    tail[ids] = 0.0
    head_mass = float(head.sum())
    total = head_mass + float(tail.sum(dtype=np.float64))
    if _kept(head, total, params) <= len(head):
        return int(ids[_pick(head, total, params, draw)])
    tail[tail < params.min_p] = 0.0
    if params.top_p < 1.0:
        _cut_to_mass(tail, params.top_p * total - head_mass)
    cumulative = np.cumsum(tail, dtype=np.float64)
    target = draw * (head_mass + float(cumulative[-1]))
    if target < head_mass:
        return int(ids[np.searchsorted(np.cumsum(head), target, side="right")])
    index = int(np.searchsorted(cumulative, target - head_mass, side="right"))
    return min(index, int(np.flatnonzero(tail)[-1]))


def _cut_to_mass(weights: npt.NDArray[np.float32], mass: float) -> None:
    """Set to zero, in place, all but the fewest largest weights that hold ``mass``.

    ``weights`` are float32 ``[vocab]`` and not negative; of equal ones the lower ids stay.
    """
    floor = _weight_floor(weights, mass)
    weights[weights < floor] = 0.0
    equal = np.flatnonzero(weights == floor)
    above = float(weights.sum(dtype=np.float64)) - len(equal) * floor
    if floor > 0.0:
        weights[equal[max(math.ceil((mass - above) / floor), 1) :]] = 0.0


def _weight_floor(weights: npt.NDArray[np.float32], mass: float) -> float:
    """Return the largest floor for which the weights not below it hold at least ``mass``.

    ``weights`` are float32 ``[vocab]`` and not negative. Positive floats order as their bits do, so
    the upper half of the bits makes the buckets of a histogram, and only one bucket is sorted.
    """
    buckets = weights.view(np.int32) >> 16
    held = np.bincount(buckets, weights=weights)
    from_top = np.cumsum(held[::-1])
    index = int(np.searchsorted(from_top, mass))
    if index >= len(held):
        return 0.0
    bucket = len(held) - 1 - index
    inside = np.sort(weights[buckets == bucket])[::-1]
    above = float(from_top[index - 1]) if index else 0.0
    reached = above + np.cumsum(inside, dtype=np.float64) >= mass
    return float(inside[reached.argmax() if reached[-1] else -1])


def _pick_if_clear(
    weights: Floats, tail: tuple[float, float], params: SamplingParams, draw: float
) -> int | None:
    """Return the index drawn when it is the same for the least and the most mass in the tail."""
    head = float(weights.sum())
    least, _ = _kept_mass(weights, head + tail[0], params)
    _, most = _kept_mass(weights, head + tail[1], params)
    low, high = np.searchsorted(np.cumsum(weights), (draw * least, draw * most), side="right")
    return int(low) if low == high < len(weights) else None


def _kept_mass(weights: Floats, total: float, params: SamplingParams) -> tuple[float, float]:
    """Return the least and the most mass that truncation may leave of a row of mass ``total``.

    ``weights`` are the row's head. Where truncation cuts beyond it, top_p leaves its share and at
    most one token more, and min_p anything.
    """
    kept = _kept(weights, total, params)
    if kept <= len(weights):
        mass = float(np.cumsum(weights[:kept])[-1])
        return mass, mass
    least = most = total
    if params.top_p < 1.0:
        least = params.top_p * total
        most = min(total, least + float(weights[-1]))
    if params.min_p > 0.0:
        least = float(weights.sum())
    return least, most


def _pick(weights: Floats, total: float, params: SamplingParams, draw: float) -> int:
    """Return the index drawn from ``weights``, which are in descending order.

    ``total`` is the mass of the whole row, whose truncation leaves none but ``weights``.
    """
    kept = _kept(weights, total, params)
    cumulative = np.cumsum(weights[:kept])
    index = int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))
    return min(index, kept - 1)


def _kept(weights: Floats, total: float, params: SamplingParams) -> int:
    """Return how many of ``weights`` top_p and min_p leave, at least 1.

    One more than there are means: all of them, and perhaps more beyond.
    """
    beyond = len(weights) + (1 if float(weights.sum()) < total * (1.0 - 1e-12) else 0)
    kept = beyond
    if params.top_p < 1.0:
        reached = np.cumsum(weights) >= params.top_p * total
        kept = int(reached.argmax()) + 1 if reached[-1] else beyond
    if params.min_p > 0.0:
        strong = int(np.count_nonzero(weights >= params.min_p * weights[0]))
        kept = min(kept, strong) if strong < len(weights) else kept
    return max(kept, 1)


def _tail_bounds(scaled: Floats, logsumexp: float, params: SamplingParams) -> tuple[float, float]:
    """Return the least and the most mass that tokens outside the candidates can hold.

    ``scaled`` float64 ``[candidates]`` are logits, likeliest first. Mass is in units of the
    likeliest token's, at the row's temperature T. At T = 1 it is the difference to the known sum;
    for T < 1 a tail weight w^(1/T) is at most w · m^(1/T - 1), m being the least candidate's; for T
    > 1 Hölder's inequality bounds the sum by n^(1 - 1/T) · (Σ w)^(1/T), not used: such rows are
    looked at whole.
    """
    head = float(np.exp(scaled - scaled[0]).sum())
    whole = float(np.exp(logsumexp - scaled[0]))
    tail = whole - head
    slack = _MASS_SLACK * whole
    low, high = max(tail - slack, 0.0), max(tail + slack, 0.0)
    if params.temperature == 1.0:
        return low, high
    if params.temperature > 1.0:
        return 0.0, float("inf")
    least = float(np.exp(scaled[-1] - scaled[0]))
    return 0.0, high * least ** (1.0 / params.temperature - 1.0)


def _likeliest(row: Logits, count: int) -> Ids:
    """Return the ids of the ``count`` largest of one row, largest first, of equals the lower id.

    The row is laid out as ``_BLOCK`` lines, so that a column is a block and the maxima of all
    blocks are one vectorised pass. The ``count`` best blocks have ``count`` values not below the
    least of their maxima, so nothing below it is looked at.
    """
    blocks = len(row) // _BLOCK
    if count >= blocks:
        return np.lexsort((np.arange(len(row)), -row))[:count]
    lines = row[: blocks * _BLOCK].reshape(_BLOCK, blocks)
    maxima = lines.max(axis=0)
    floor = np.partition(maxima, blocks - count)[blocks - count]
    best = np.flatnonzero(maxima >= floor)
    line, column = np.nonzero(lines[:, best] >= floor)
    rest = np.arange(blocks * _BLOCK, len(row))
    ids = np.concatenate((line * blocks + best[column], rest))
    return ids[np.lexsort((ids, -row[ids]))[:count]]


def _edits(row: RowState) -> bool:
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


def _edited(raw: Logits, row: RowState) -> Logits:
    """Return a copy of one row, float32 ``[vocab]``, with bias, bans and penalties applied."""
    params = row.params
    logits = raw.copy()
    if params.logit_bias:
        ids = np.fromiter(params.logit_bias.keys(), np.int64)
        bias = np.fromiter(params.logit_bias.values(), np.float64)
        logits[ids] += np.clip(bias, -_MOST_BIAS, _MOST_BIAS).astype(np.float32)
    if params.allowed_token_ids:
        _allow_only(logits, np.array(params.allowed_token_ids, np.int64))
    banned = [*row.banned, *_bad_word_ends(params.bad_words, row.tail)]
    _ban(logits, banned)
    _penalise(logits, params, row.counts)
    return logits


def _allow_only(logits: Logits, allowed: Ids) -> None:
    """Rule out all other tokens; if the model rules these out too, they are equally likely."""
    kept = logits[allowed]
    if not np.isfinite(kept.max()):
        kept[:] = 0.0
    logits.fill(-np.inf)
    logits[allowed] = kept


def _ban(logits: Logits, banned: Sequence[int]) -> None:
    """Rule tokens out, unless nothing at all would be left."""
    if not banned:
        return
    kept = logits[np.array(banned, np.int64)].copy()
    logits[np.array(banned, np.int64)] = -np.inf
    if not np.isfinite(logits.max()):
        logits[np.array(banned, np.int64)] = kept


def _bad_word_ends(words: Sequence[tuple[int, ...]], tail: Sequence[int]) -> list[int]:
    """Return the tokens that would complete a banned sequence of tokens."""
    ends = []
    for word in words:
        beginning = word[:-1]
        if not beginning or tuple(tail[-len(beginning) :]) == beginning:
            ends.append(word[-1])
    return ends


def _penalise(logits: Logits, params: SamplingParams, counts: TokenCounts) -> None:
    """Apply the three penalties to one row, float32 ``[vocab]``, in place.

    Repetition divides positive logits and multiplies negative ones, for tokens of prompt and
    output: Keskar et al., 2019, arXiv:1909.05858. Frequency and presence are subtracted, for output
    tokens: OpenAI's API reference.
    """
    if params.repetition_penalty != 1.0:
        seen = np.fromiter(counts.prompt | counts.output.keys(), np.int64)
        values = logits[seen]
        factor = np.float32(max(params.repetition_penalty, _LEAST_REPETITION))
        logits[seen] = np.where(values > 0, values / factor, values * factor)
    if counts.output and (params.frequency_penalty or params.presence_penalty):
        ids = np.fromiter(counts.output.keys(), np.int64)
        times = np.fromiter(counts.output.values(), np.float32)
        penalty = params.frequency_penalty * times + params.presence_penalty
        logits[ids] -= penalty.astype(np.float32)
