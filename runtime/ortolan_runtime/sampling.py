"""From logits to tokens: penalties, truncation and the draw, for all rows of a step at once.

The order is: bias and bans, penalties, temperature, top_k, top_p, min_p, draw. Reported logprobs
are those of the raw logits. A row's result depends on that row alone, bit for bit, whatever its
batch.

A large vocabulary is not sorted: the tokens that are likely enough decide most draws, for all rows
together. A row is looked at by itself only when they do not hold the mass that decides its draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ortolan_runtime.adjustments import RowState, adjust, has_adjustments
from ortolan_runtime.likeliest import Floats, Heads, head_of, heads_above, likeliest
from ortolan_runtime.logits import Ids, Logits, LogSumExp, Row
from ortolan_runtime.truncation import Mass, Rules, drawn_from_heads, rules_of, weights_of

# Draws add up the mass of at most so many of the likeliest tokens in the order of their likelihood.
CANDIDATES = 256
# Tokens of at least this probability are looked at first: under 50 in most rows of real models,
# with over 90 % of the mass.
_LIKELY = 2.0**-11
# float32 sums against float64 sums: relative slack for "the draw is sure".
_SUM_SLACK = 1e-5
# Weights that are added up at a time when a place is sought among all.
_SUMMED = 1024


@dataclass(slots=True)
class Sampled:
    """The outcome of one step: token ids int64 ``[rows]``; ``is_valid`` is False for a NaN row."""

    tokens: Ids
    is_valid: npt.NDArray[np.bool_]


def sample(logits: Logits, logsumexp: LogSumExp, rows: Sequence[RowState]) -> Sampled:
    """Choose the next token of each row.

    ``logits`` is float32 ``[rows, vocab]`` and unchanged afterwards; ``logsumexp`` float32
    ``[rows]`` is of the raw logits, and so not finite where one of them is NaN or +inf. Such a row
    gets token 0 and ``is_valid`` False.
    """
    is_valid = np.isfinite(logsumexp)
    tokens = np.zeros(len(rows), np.int64)
    greedy, plain, edited = [], [], []
    for place in np.flatnonzero(is_valid).tolist():
        row = rows[place]
        if has_adjustments(row):
            edited.append(place)
        elif row.params.is_greedy:
            greedy.append(place)
        else:
            plain.append(place)
    for place in greedy:
        tokens[place] = logits[place].argmax()
    if plain:
        chosen = logits if len(plain) == len(rows) else logits[plain]
        tokens[plain] = _draw_plain(chosen, logsumexp[plain], [rows[i] for i in plain])
    if edited:
        raw = [logits[i] for i in edited]
        tokens[edited] = _draw_edited(raw, logsumexp[edited], [rows[i] for i in edited])
    return Sampled(tokens, is_valid)


def logprob_of(row: Row, logsumexp: np.float32, token: int) -> float:
    """Return the raw logprob of one token of a row of logits, a float32 number."""
    return float(row[token] - logsumexp)


def top_logprobs(row: Row, logsumexp: np.float32, count: int) -> list[tuple[int, float]]:
    """Return the ``count`` likeliest (id, raw logprob) of one row of logits, best first.

    The numbers are those of ``logprob_of``, bit for bit; of equal logits the lower id comes first.
    """
    if count == 0:
        return []
    ids = likeliest(row, min(count, len(row))).tolist()
    return [(id, logprob_of(row, logsumexp, id)) for id in ids]


def _draw_plain(logits: Logits, logsumexp: LogSumExp, rows: Sequence[RowState]) -> Ids:
    """Return the tokens of rows without adjustments."""
    return _draw(logits, logsumexp.astype(np.float64), _slack_of(logsumexp), rows)


def _draw_edited(raw: Sequence[Row], logsumexp: LogSumExp, rows: Sequence[RowState]) -> Ids:
    """Return the tokens of rows after bias, bans and penalties.

    The mass is known for the raw logits, and follows from the tokens that changed. When its slack
    is all that is left, nothing is sure.
    """
    logits, slack = np.stack(raw), _slack_of(logsumexp)
    sums = np.empty((len(rows), 2))
    for i, row in enumerate(rows):
        adjust(logits[i], row)
        sums[i] = _edited_logsumexp(raw[i], logits[i], float(logsumexp[i]), float(slack[i]))
    return _draw(logits, sums[:, 0], sums[:, 1], rows)


def _slack_of(logsumexp: LogSumExp) -> Floats:
    """Return the relative slack of the mass that float32 ``logsumexp`` stands for, ``[rows]``.

    Rounding it multiplies the mass: where logits are about 10,000, by up to 1.0005.
    """
    return _SUM_SLACK + np.spacing(np.abs(logsumexp)).astype(np.float64)


def _edited_logsumexp(raw: Row, edited: Row, logsumexp: float, slack: float) -> tuple[float, float]:
    """Return the log-sum-exp of an edited row, and the relative slack of the mass it stands for.

    ``logsumexp`` and ``slack`` are the raw row's.
    """
    changed = np.flatnonzero(raw != edited)
    old, new = raw[changed].astype(np.float64), edited[changed].astype(np.float64)
    peak = max(logsumexp, float(new.max(initial=-np.inf)))
    before = math.exp(logsumexp - peak)
    gone, come = float(np.exp(old - peak).sum()), float(np.exp(new - peak).sum())
    mass = before - gone + come
    if mass <= 0.0:  # all but nothing, and what is left is lost in rounding
        return peak, math.inf
    return peak + math.log(mass), slack * (before + come) / mass


def _draw(logits: Logits, logsumexp: Floats, slack: Floats, rows: Sequence[RowState]) -> Ids:
    """Return the tokens that rows draw, int64 ``[rows]``.

    ``logsumexp`` float64 ``[rows]`` is of ``logits``, float32 ``[rows, vocab]``; the mass that it
    stands for is right to within ``slack``, relative.
    """
    rules = rules_of(rows, logits.shape[1])
    floors = (logsumexp + math.log(_LIKELY)).astype(np.float32)
    heads = heads_above(logits, floors, CANDIDATES)
    with np.errstate(over="ignore"):
        total = np.exp(logsumexp[:, None] - heads.logits[:, :1])
    mass = Mass(total, total * slack[:, None], np.ones_like(total))
    tokens, is_sure = drawn_from_heads(heads, mass, rules)
    _draw_by_sums(logits, heads, rules, tokens, is_sure)
    for place in np.flatnonzero(~is_sure).tolist():
        tokens[place] = _draw_alone(logits[place], rules.take(np.array([place])))
    return tokens


def _draw_by_sums(
    logits: Logits, heads: Heads, rules: Rules, tokens: Ids, is_sure: npt.NDArray[np.bool_]
) -> None:
    """Draw what is not sure, where the mass at the row's own temperature says more; in place."""
    unsure = np.flatnonzero(~is_sure & (rules.temperature != 1.0)[:, 0] & (heads.sizes > 0)[:, 0])
    if not len(unsure):
        return
    rules, heads = rules.take(unsure), heads.take(unsure)
    weights = (
        _weights(logits[place], peak, temperature)
        for place, peak, temperature in zip(
            unsure, heads.logits[:, 0], rules.temperature[:, 0], strict=True
        )
    )
    total = np.array([[row.sum()] for row in weights], np.float64)
    mass = Mass(total, _SUM_SLACK * total, rules.temperature)
    tokens[unsure], is_sure[unsure] = drawn_from_heads(heads, mass, rules)


def _weights(row: Row, peak: float, temperature: float) -> Row:
    """Return the weights of all tokens of a row, float32 ``[vocab]``, in units of ``peak``'s."""
    weights = row - np.float32(peak)
    weights /= np.float32(temperature)
    np.exp(weights, out=weights)
    return weights


def _draw_alone(logits: Row, rules: Rules) -> int:
    """Return the token that one row draws; ``rules`` are of it alone."""
    top_k = float(rules.top_k[0, 0])
    if math.isfinite(top_k):
        unknown = np.full((1, 1), np.inf)
        heads = head_of(logits, int(top_k))
        (token,), _ = drawn_from_heads(heads, Mass(unknown, unknown, rules.temperature), rules)
        return int(token)
    return _draw_from_whole_row(logits, rules)


def _draw_from_whole_row(logits: Row, rules: Rules) -> int:
    """Return the token that one row draws, whose weights are added up, all of them.

    Mass adds up in the same order as everywhere: the likeliest in their order, then the others by
    id; so a draw means the same token whichever way it was found.
    """
    heads = head_of(logits, CANDIDATES)
    ids = heads.ids[0]
    temperature, top_p, min_p, draw = (
        float(rule[0, 0]) for rule in (rules.temperature, rules.top_p, rules.min_p, rules.draw)
    )
    tail = _weights(logits, float(logits[ids[0]]), temperature)
    tail[ids] = 0.0
    head_sums = np.cumsum(weights_of(heads, rules.temperature)[0])
    head = float(head_sums[-1])
    total = head + float(tail.sum(dtype=np.float64))
    mass = Mass(np.full((1, 1), total), np.zeros((1, 1)), rules.temperature)
    (token,), (is_sure,) = drawn_from_heads(heads, mass, rules)
    if is_sure:
        return int(token)
    # Truncation leaves all of the head, and some of the tail.
    tail[tail < min_p] = 0.0
    if top_p < 1.0:
        _cut_to_mass(tail, logits, top_p * total - head)
    rest = float(tail.sum(dtype=np.float64))
    target = draw * (head + rest)
    if target < head or rest == 0.0:
        return int(ids[min(int(head_sums.searchsorted(target, side="right")), len(ids) - 1)])
    return _place_of_mass(tail, target - head)


def _place_of_mass(weights: Row, mass: float) -> int:
    """Return the first place with which the sums of ``weights``, float32 ``[vocab]``, exceed it.

    Where rounding keeps them from that, it is the last place with any weight.
    """
    starts = np.arange(0, len(weights), _SUMMED)
    sums = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    block = int(sums.searchsorted(mass, side="right"))
    if block == len(sums):
        return int(np.flatnonzero(weights)[-1])
    start = int(starts[block])
    inside = weights[start : start + _SUMMED]
    before = float(sums[block - 1]) if block else 0.0
    found = np.cumsum(inside, dtype=np.float64).searchsorted(mass - before, side="right")
    return start + min(int(found), int(np.flatnonzero(inside)[-1]))


def _cut_to_mass(weights: Row, logits: Row, mass: float) -> None:
    """Set to zero, in place, all but the fewest largest weights that hold ``mass``.

    ``weights`` are float32 ``[vocab]`` and not negative; of equal ones those of the larger
    ``logits`` stay, which a high temperature brings so near, then the lower ids.
    """
    floor = _weight_floor(weights, mass)
    weights[weights < floor] = 0.0
    equal = np.flatnonzero(weights == floor)
    above = float(weights.sum(dtype=np.float64)) - len(equal) * floor
    if floor > 0.0:
        equal = equal[np.argsort(-logits[equal], kind="stable")]
        weights[equal[max(math.ceil((mass - above) / floor), 1) :]] = 0.0


def _weight_floor(weights: Row, mass: float) -> float:
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
