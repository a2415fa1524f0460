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

from ortolan_runtime.adjustments import RowState
from ortolan_runtime.likeliest import Floats, Heads
from ortolan_runtime.logits import Ids
from ortolan_runtime.params import SamplingParams

Bools = npt.NDArray[np.bool_]

# Rounding of a sum of float64, relative.
_ROUNDING = 1e-12


@dataclass(slots=True, frozen=True)
class Rules:
    """How rows are cut and drawn: float64 ``[rows, 5]``, and each column as ``[rows, 1]``."""

    table: Floats

    @property
    def temperature(self) -> Floats:
        """Return what logits are divided by."""
        return self.table[:, 0:1]

    @property
    def top_k(self) -> Floats:
        """Return how many tokens are left, at most the vocabulary; inf is off."""
        return self.table[:, 1:2]

    @property
    def top_p(self) -> Floats:
        """Return the share of the mass that is left; 1 is off."""
        return self.table[:, 2:3]

    @property
    def min_p(self) -> Floats:
        """Return the least weight that is left; 0 is off."""
        return self.table[:, 3:4]

    @property
    def draw(self) -> Floats:
        """Return the uniform numbers in [0, 1)."""
        return self.table[:, 4:5]

    def take(self, places: Ids) -> Rules:
        """Return the rules of some rows."""
        return Rules(self.table[places])


@dataclass(slots=True, frozen=True)
class Mass:
    """The sums of all weights of rows at some temperature, right to within ``slack``.

    All are float64 ``[rows, 1]``.
    """

    total: Floats
    slack: Floats
    temperature: Floats


def rules_of(rows: Sequence[RowState], vocabulary: int) -> Rules:
    """Return the rules of rows of ``vocabulary`` logits; a greedy one is left its likeliest."""
    return Rules(np.array([(*_rule(row.params, vocabulary), row.draw) for row in rows]))


def _rule(params: SamplingParams, vocabulary: int) -> tuple[float, float, float, float]:
    if params.is_greedy:
        return 1.0, 1.0, 1.0, 0.0
    top_k = min(params.top_k, vocabulary) if params.top_k else math.inf
    return params.temperature, top_k, params.top_p, params.min_p


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
        least, most = cut.kept_mass(cut.mass + _tail_bounds(heads, mass, rules))
        place, other = cut.places(np.stack((least[0], most[1])))
        is_sure = (place == other) & (place < cut.sizes)
    return _at(heads.ids, np.minimum(place, cut.sizes - 1))[:, 0], is_sure[:, 0]


class _CutHead:
    """The weights of rows' heads, float64 ``[rows, longest]``, and what truncation leaves of them.

    What top_k cuts off weighs nothing; ``sizes`` int64 ``[rows, 1]`` are what it leaves of a head,
    and ``mass`` float64 ``[rows, 1]`` is what that weighs. Several masses of a row may be asked
    about at once: they and the answers are ``[any, rows, 1]``.
    """

    def __init__(self, heads: Heads, rules: Rules) -> None:
        self._rules = rules
        self.sizes = np.minimum(heads.sizes, rules.top_k).astype(np.int64)
        self._weights = weights_of(heads, rules.temperature)
        self._weights[np.arange(self._weights.shape[1]) >= self.sizes] = 0.0
        self._cumulative = np.cumsum(self._weights, axis=1)
        self.mass = self._cumulative[:, -1:]

    def kept(self, total: Floats) -> Ids:
        """Return how many tokens top_p and min_p leave of rows of mass ``total``, >= 1.

        One more than the head has means: all of it, and perhaps more beyond.
        """
        beyond = self.sizes + (self.mass < total * (1.0 - _ROUNDING))
        reached = _count(self._cumulative < self._rules.top_p * total)
        is_cut = (self._rules.top_p < 1.0) & (reached < self.sizes)
        kept = np.where(is_cut, reached + 1, beyond)
        strong = _count(self._weights >= self._rules.min_p)
        is_cut = (self._rules.min_p > 0.0) & (strong < self.sizes)
        return np.maximum(np.where(is_cut, np.minimum(kept, strong), kept), 1)

    def kept_mass(self, total: Floats) -> tuple[Floats, Floats]:
        """Return the least and the most mass that top_p and min_p may leave of rows of ``total``.

        Where they cut beyond the head, top_p leaves its share and at most one token more, and min_p
        anything.
        """
        kept = self.kept(total)
        inside = _at(self._cumulative, np.minimum(kept, self.sizes) - 1)
        share = self._rules.top_p * total
        least = np.where(self._rules.min_p > 0.0, self.mass, share)
        one_more = np.minimum(total, share + _at(self._weights, self.sizes - 1))
        most = np.where(self._rules.top_p < 1.0, one_more, total)
        is_inside = kept <= self.sizes
        return np.where(is_inside, inside, least), np.where(is_inside, inside, most)

    def places(self, mass: Floats) -> Ids:
        """Return the place of the token that the draw's share of ``mass`` names.

        Beyond the head, it is the longest head's size.
        """
        # Below `mass`, though the product may round up to it.
        target = np.minimum(self._rules.draw * mass, np.nextafter(mass, 0.0))
        return _count(self._cumulative <= target)


def _tail_bounds(heads: Heads, mass: Mass, rules: Rules) -> Floats:
    """Return the least and the most mass that the tails may have, float64 ``[2, rows, 1]``.

    At the temperature t for which the mass is known, the tail is the difference. At T < t a weight
    w of the tail becomes w^(t/T), which is at most w · m^(t/T - 1), m being the least weight of the
    head; for T > t there is no bound worth having. Where top_k ends in the head, there is no tail.
    """
    weights = weights_of(heads, mass.temperature)
    tail = mass.total - weights.sum(axis=1, keepdims=True)
    ratio = mass.temperature / rules.temperature
    is_bounded = (ratio >= 1.0) & np.isfinite(mass.total + mass.slack)
    is_known = is_bounded & (ratio == 1.0) & np.isinf(rules.top_k)
    least = np.where(is_known, np.maximum(tail - mass.slack, 0.0), 0.0)
    shrunk = _at(weights, heads.sizes - 1) ** (np.maximum(ratio, 1.0) - 1.0)
    most = np.where(is_bounded, np.maximum(tail + mass.slack, 0.0) * shrunk, np.inf)
    return np.where(heads.sizes < rules.top_k, (least, most), 0.0)


def _at(values: npt.NDArray[Any], places: Ids) -> npt.NDArray[Any]:
    """Return a value of each row; ``places`` are ``[rows, 1]`` or ``[any, rows, 1]``."""
    return values[np.arange(len(values))[:, None], places]


def _count(marks: Bools) -> Ids:
    counts: Ids = np.count_nonzero(marks, axis=-1, keepdims=True)
    return counts
