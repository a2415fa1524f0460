"""What top_k, top_p and min_p leave of rows whose likeliest tokens are known, and the draw.

The weight of a token is the exponential of its logit over the temperature, in units of the
likeliest token's. A row's head is known, and the mass of the rest, its tail, to lie within bounds.
No row's result depends on another's, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortolan_runtime.likeliest import Floats, Heads, Ids
from ortolan_runtime.params import SamplingParams

Bools = npt.NDArray[np.bool_]

# Rounding of a sum of float64, relative.
_ROUNDING = 1e-12
# Of a row that takes its likeliest token: temperature, top_k, top_p and min_p.
_GREEDY = (1.0, 1.0, 1.0, 0.0)


@dataclass(slots=True, frozen=True)
class Rules:
    """How rows are cut and drawn; all are float64 ``[rows, 1]``.

    ``top_k`` inf is off; ``draw`` is uniform in [0, 1).
    """

    temperature: Floats
    top_k: Floats
    top_p: Floats
    min_p: Floats
    draw: Floats

    def take(self, places: Ids) -> Rules:
        """Return the rules of some rows."""
        return Rules(
            self.temperature[places],
            self.top_k[places],
            self.top_p[places],
            self.min_p[places],
            self.draw[places],
        )


@dataclass(slots=True, frozen=True)
class Mass:
    """The sums of all weights of rows at some temperature, right to within ``slack``.

    All are float64 ``[rows, 1]``.
    """

    total: Floats
    slack: Floats
    temperature: Floats

    def take(self, places: Ids) -> Mass:
        """Return the masses of some rows."""
        return Mass(self.total[places], self.slack[places], self.temperature[places])


def rules_of(params: Sequence[SamplingParams], draws: Floats, vocabulary: int) -> Rules:
    """Return the rules of rows with these parameters; ``draws`` are float64 ``[rows]``."""
    table = np.array([_GREEDY if p.is_greedy else _rule(p, vocabulary) for p in params])
    temperature, top_k, top_p, min_p = np.split(table, 4, axis=1)
    return Rules(temperature, top_k, top_p, min_p, draws[:, None])


def _rule(params: SamplingParams, vocabulary: int) -> tuple[float, float, float, float]:
    top_k = min(params.top_k, vocabulary) if params.top_k else math.inf
    return params.temperature, top_k, params.top_p, params.min_p


class _CutHead:
    """The weights of rows' heads, float64 ``[rows, longest]``, and what truncation leaves of them.

    What top_k cuts off weighs nothing; ``sizes`` int64 ``[rows, 1]`` are what it leaves of a head,
    ``cumulative`` the sums of the weights, and ``mass`` float64 ``[rows, 1]`` the last of them.
    """

    def __init__(self, heads: Heads, rules: Rules) -> None:
        self._rules = rules
        self.sizes = np.minimum(heads.sizes, rules.top_k).astype(np.int64)
        self.weights = weights_of(heads, rules.temperature)
        self.weights[np.arange(self.weights.shape[1]) >= self.sizes] = 0.0
        self.cumulative = np.cumsum(self.weights, axis=1)
        self.mass = self.cumulative[:, -1:]

    def kept(self, total: Floats) -> Ids:
        """Return how many tokens top_p and min_p leave, >= 1, int64 ``[rows, 1]``.

        ``total`` float64 ``[rows, 1]`` is the mass of the row after top_k. One more than the head
        has means: all of it, and perhaps more beyond.
        """
        beyond = self.sizes + (self.mass < total * (1.0 - _ROUNDING))
        reached = _count(self.cumulative < self._rules.top_p * total)
        is_cut = (self._rules.top_p < 1.0) & (reached < self.sizes)
        kept = np.where(is_cut, reached + 1, beyond)
        strong = _count(self.weights >= self._rules.min_p)
        is_cut = (self._rules.min_p > 0.0) & (strong < self.sizes)
        return np.maximum(np.where(is_cut, np.minimum(kept, strong), kept), 1)

    def places(self, mass: Floats) -> Ids:
        """Return the place of the token that the draw's share of ``mass`` names, ``[rows, 1]``.

        Beyond the head, it is the longest head's size.
        """
        # Below `mass`, though the product may round up to it.
        target = np.minimum(self._rules.draw * mass, np.nextafter(mass, 0.0))
        return _count(self.cumulative <= target)

    def kept_mass(self, total: Floats) -> tuple[Floats, Floats]:
        """Return the least and the most mass that top_p and min_p may leave of rows of ``total``.

        Where they cut beyond the head, top_p leaves its share and at most one token more, and min_p
        anything.
        """
        kept = self.kept(total)
        inside = _at(self.cumulative, np.minimum(kept, self.sizes) - 1)
        share = self._rules.top_p * total
        least = np.where(self._rules.min_p > 0.0, self.mass, share)
        one_more = np.minimum(total, share + _at(self.weights, self.sizes - 1))
        most = np.where(self._rules.top_p < 1.0, one_more, total)
        is_inside = kept <= self.sizes
        return np.where(is_inside, inside, least), np.where(is_inside, inside, most)


def weights_of(heads: Heads, temperature: Floats) -> Floats:
    """Return the weights of heads at a temperature, float64 ``[rows, longest]``."""
    weights: Floats = np.exp((heads.logits - heads.logits[:, :1]) / temperature)
    return weights


def drawn_from_heads(heads: Heads, mass: Mass, rules: Rules) -> tuple[Ids, Bools]:
    """Return the token that each row draws, and whether that is sure, ``[rows]`` each.

    It is sure when the draw names the same token for the least and the most mass that the tail may
    have. An empty head makes nothing sure.
    """
    with np.errstate(invalid="ignore"):  # an empty head's, and of mass that is not finite
        cut = _CutHead(heads, rules)
        lightest, heaviest = _tail_bounds(heads, mass, rules)
        least, _ = cut.kept_mass(cut.mass + lightest)
        _, most = cut.kept_mass(cut.mass + heaviest)
        place = cut.places(least)
        is_sure = (place == cut.places(most)) & (place < cut.sizes)
    return _at(heads.ids, np.minimum(place, cut.sizes - 1))[:, 0], is_sure[:, 0]


def _tail_bounds(heads: Heads, mass: Mass, rules: Rules) -> tuple[Floats, Floats]:
    """Return the least and the most mass that the tails may have, float64 ``[rows, 1]`` each.

    At the temperature t for which the mass is known, the tail is the difference. At T < t a weight
    w of the tail becomes w^(t/T), which is at most w · m^(t/T - 1), m being the least weight of the
    head; for T > t there is no bound worth having. Where top_k ends in the head, there is no tail.
    """
    weights = weights_of(heads, mass.temperature)
    tail = mass.total - weights.sum(axis=1, keepdims=True)
    ratio = mass.temperature / rules.temperature
    shrunk = _at(weights, heads.sizes - 1) ** (np.maximum(ratio, 1.0) - 1.0)
    is_bounded = (ratio >= 1.0) & np.isfinite(mass.total)
    most = np.where(is_bounded, np.maximum(tail + mass.slack, 0.0) * shrunk, np.inf)
    is_known = is_bounded & (ratio == 1.0) & np.isinf(rules.top_k)
    least = np.where(is_known, np.maximum(tail - mass.slack, 0.0), 0.0)
    has_tail = heads.sizes < rules.top_k
    return np.where(has_tail, least, 0.0), np.where(has_tail, most, 0.0)


def _at(values: npt.NDArray[Any], places: Ids) -> npt.NDArray[Any]:
    """Return one value of each row; ``places`` are ``[rows, 1]``, and so is what is returned."""
    return np.take_along_axis(values, places, axis=1)


def _count(marks: Bools) -> Ids:
    counts: Ids = np.count_nonzero(marks, axis=1, keepdims=True)
    return counts
