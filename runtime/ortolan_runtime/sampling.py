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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ortolan_runtime.adjustments import RowState, adjusted, has_adjustments
from ortolan_runtime.params import SamplingParams
from ortolan_runtime.randomness import uniforms

Logits = npt.NDArray[np.float32]  # [rows, vocab]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

# How many of a row's likeliest tokens are looked at, and how many before that. 256 hold over 95 %
# of the mass of real models' rows at temperature 1; 32 decide most draws at half the price.
CANDIDATES = 256
_FIRST_CANDIDATES = 32
# Columns of a block whose maximum stands for it when candidates are searched.
_BLOCK = 64
# float32 sums of the graph against float64 sums here: relative slack for "the decision is clear".
_MASS_SLACK = 1e-5


@dataclass(slots=True)
class Sampled:
    """The outcome of one step: token ids int64 ``[rows]``; ``is_valid`` is False for a NaN row."""

    tokens: Ids
    is_valid: npt.NDArray[np.bool_]


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
    return row.params.is_greedy and not has_adjustments(row)


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
    logits = adjusted(raw, row) if has_adjustments(row) else raw
    if params.is_greedy:
        return int(logits.argmax())
    mass: tuple[float, float] | None = None
    for limit in (params.top_k,) if params.top_k else (_FIRST_CANDIDATES, CANDIDATES):
        count = min(limit, len(logits))
        ids = _likeliest(logits, count)
        scaled = logits[ids].astype(np.float64)
        weights = np.exp((scaled - scaled[0]) / params.temperature)
        if params.top_k or count == len(logits):
            return int(ids[_pick(weights, float(weights.sum()), params, draw)])
        if mass is None:
            mass = _row_mass(raw, logits, logsumexp, float(scaled[0]))
        index = _pick_if_clear(weights, _tail_bounds(scaled, mass, params), params, draw)
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
    if _kept(head, np.cumsum(head), total, params) <= len(head):
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
    cumulative = np.cumsum(weights)
    head = float(cumulative[-1])
    least, _ = _kept_mass(weights, cumulative, head + tail[0], params)
    _, most = _kept_mass(weights, cumulative, head + tail[1], params)
    low, high = cumulative.searchsorted((draw * least, draw * most), side="right")
    return int(low) if low == high < len(weights) else None


def _kept_mass(
    weights: Floats, cumulative: Floats, total: float, params: SamplingParams
) -> tuple[float, float]:
    """Return the least and the most mass that truncation may leave of a row of mass ``total``.

    ``weights`` are the row's head, ``cumulative`` their sums. Where truncation cuts beyond it,
    top_p leaves its share and at most one token more, and min_p anything.
    """
    kept = _kept(weights, cumulative, total, params)
    if kept <= len(weights):
        mass = float(cumulative[kept - 1])
        return mass, mass
    least = most = total
    if params.top_p < 1.0:
        least = params.top_p * total
        most = min(total, least + float(weights[-1]))
    if params.min_p > 0.0:
        least = float(cumulative[-1])
    return least, most


def _pick(weights: Floats, total: float, params: SamplingParams, draw: float) -> int:
    """Return the index drawn from ``weights``, which are in descending order.

    ``total`` is the mass of the whole row, whose truncation leaves none but ``weights``.
    """
    cumulative = np.cumsum(weights)
    kept = min(_kept(weights, cumulative, total, params), len(weights))
    index = int(cumulative[:kept].searchsorted(draw * cumulative[kept - 1], side="right"))
    return min(index, kept - 1)


def _kept(weights: Floats, cumulative: Floats, total: float, params: SamplingParams) -> int:
    """Return how many of ``weights``, whose sums are ``cumulative``, top_p and min_p leave, >= 1.

    One more than there are means: all of them, and perhaps more beyond.
    """
    beyond = len(weights) + (1 if float(cumulative[-1]) < total * (1.0 - 1e-12) else 0)
    kept = beyond
    if params.top_p < 1.0:
        reached = int(cumulative.searchsorted(params.top_p * total))
        kept = reached + 1 if reached < len(weights) else beyond
    if params.min_p > 0.0:
        strong = int(np.count_nonzero(weights >= params.min_p * weights[0]))
        kept = min(kept, strong) if strong < len(weights) else kept
    return max(kept, 1)


def _row_mass(raw: Logits, logits: Logits, logsumexp: float, top: float) -> tuple[float, float]:
    """Return the sum of the exponentials of ``logits``, in units of that of ``top``, and its slack.

    It is known for the ``raw`` logits, and follows for the adjusted ones from the tokens that
    changed. The slack covers that ``logsumexp`` is float32; when it is all that is left, nothing is
    clear.
    """
    with np.errstate(over="ignore"):
        before = float(np.exp(np.float64(logsumexp) - top))
        if logits is raw:
            return before, _MASS_SLACK * before
        changed = np.flatnonzero(raw != logits)
        gone = float(np.exp(raw[changed].astype(np.float64) - top).sum())
        come = float(np.exp(logits[changed].astype(np.float64) - top).sum())
    return before - gone + come, _MASS_SLACK * (before + come)


def _tail_bounds(
    scaled: Floats, mass: tuple[float, float], params: SamplingParams
) -> tuple[float, float]:
    """Return the least and the most mass that tokens outside the candidates can hold.

    ``scaled`` float64 ``[candidates]`` are logits, likeliest first; ``mass`` is that of the whole
    row at T = 1, and its slack, in units of the likeliest token's. At T = 1 the tail is the
    difference; for T < 1 a tail weight w^(1/T) is at most w · m^(1/T - 1), m being the least
    candidate's. For T > 1 there is no bound worth having: such rows are looked at whole.
    """
    if params.temperature > 1.0 or not np.isfinite(mass[0]):
        return 0.0, float("inf")
    tail = mass[0] - float(np.exp(scaled - scaled[0]).sum())
    low, high = max(tail - mass[1], 0.0), max(tail + mass[1], 0.0)
    if params.temperature == 1.0:
        return low, high
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
