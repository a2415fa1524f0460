"""Sampling agrees with a plain reference that sorts whole rows in float64.

The reference lays the kept tokens out in the order that ``sampling`` promises, so that each draw
names one token: the candidates likeliest first, then the others by id. A draw or a limit that falls
on a border to within float32 is left out, since either side of it is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ortolan_runtime.adjustments import RowState, TokenCounts
from ortolan_runtime.params import SamplingParams
from ortolan_runtime.randomness import Draws
from ortolan_runtime.sampling import CANDIDATES, Sampled, logprob_of, sample, top_logprobs

# Sums of float32 exponentials in another order.
CLOSE = 3e-6


@dataclass
class Kept:
    """What a row may draw: ids in the order of their mass, weights, and whether a limit is near."""

    ids: np.ndarray
    weights: np.ndarray
    is_close: bool


def reference(logits: np.ndarray, params: SamplingParams) -> Kept:
    """Return what truncation leaves of one row, float32 ``[vocab]``."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    scaled = logits[order].astype(np.float64)
    weights = np.exp((scaled - scaled[0]) / params.temperature)
    if params.top_k:
        order, weights = order[: params.top_k], weights[: params.top_k]
    cumulative, total = np.cumsum(weights), weights.sum()
    kept, is_close = len(weights), False
    if params.top_p < 1.0:
        kept = int((cumulative >= params.top_p * total).argmax()) + 1
        is_close = bool((abs(cumulative - params.top_p * total) < CLOSE * total).any())
    if params.min_p > 0.0:
        kept = min(kept, int((weights >= params.min_p).sum()))
        is_close |= bool((abs(weights - params.min_p) < CLOSE * params.min_p).any())
    head = min(kept, max(CANDIDATES, params.top_k))
    places = np.concatenate((np.arange(head), head + np.argsort(order[head:kept])))
    return Kept(order[:kept][places], weights[:kept][places], is_close)


def expected(kept: Kept, draw: float) -> int | None:
    """Return the id that ``draw`` names, or None when it falls on a border."""
    cumulative = np.cumsum(kept.weights)
    target = draw * cumulative[-1]
    if (abs(cumulative[:-1] - target) < CLOSE * cumulative[-1]).any():
        return None
    return int(kept.ids[np.searchsorted(cumulative, target, side="right")])


def run(logits: np.ndarray, rows: list[RowState]) -> Sampled:
    top = logits.max(axis=1, keepdims=True).astype(np.float64)
    lse = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
    return sample(logits, lse.astype(np.float32), rows)


def row_of(params: SamplingParams, position: int = 0) -> RowState:
    draw = Draws(params.seed, params.choice).at(position)
    return RowState(params=params, counts=TokenCounts(), draw=draw)


Rows = Callable[[np.random.Generator, int], np.ndarray]


def peaked(rng: np.random.Generator, vocab: int) -> np.ndarray:
    """A model that knows: a few tokens hold nearly all."""
    logits = rng.normal(0, 2, vocab)
    logits[rng.integers(vocab, size=3)] += 14
    return logits


def broad(rng: np.random.Generator, vocab: int) -> np.ndarray:
    """A model that wavers: hundreds of tokens count."""
    return rng.normal(0, 1.5, vocab)


def flat(rng: np.random.Generator, vocab: int) -> np.ndarray:
    """Nearly uniform, so that no set of candidates decides anything.

    Evenly spaced, so that float32 keeps neighbours apart.
    """
    return rng.permutation(vocab) * (0.02 / vocab)


def tied(rng: np.random.Generator, vocab: int) -> np.ndarray:
    """Four values only, so that every limit falls among equals."""
    return rng.integers(0, 4, vocab).astype(float)


def masked(rng: np.random.Generator, vocab: int) -> np.ndarray:
    """Nine of ten tokens are impossible."""
    logits = rng.normal(0, 2, vocab)
    logits[rng.random(vocab) < 0.9] = -np.inf
    logits[rng.integers(vocab)] = 1.0
    return logits


def far(rng: np.random.Generator, vocab: int) -> np.ndarray:
    """Logits whose log-sum-exp float32 rounds to a thousandth."""
    return rng.normal(0, 1.5, vocab) + 10_000


SHAPES: list[Rows] = [peaked, broad, flat, tied, masked, far]

truncations = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.05, 0.3, 0.7, 1.0, 1.0, 1.3, 2.0]),
    top_k=st.sampled_from([0, 0, 0, 1, 2, 40, 256, 257, 1000, 10**6]),
    top_p=st.one_of(st.just(1.0), st.floats(1e-9, 0.999999)),
    min_p=st.one_of(st.just(0.0), st.floats(1e-6, 1.0)),
    seed=st.integers(-(2**63), 2**63 - 1),
)


@settings(max_examples=300)
@given(
    shape=st.sampled_from(SHAPES),
    vocab=st.sampled_from([1, 2, 63, 64, 65, 255, 256, 257, 1000, 16_384, 17_001]),
    table=st.integers(0, 2**32),
    params=truncations,
)
def test_each_draw_names_the_token_that_the_reference_names(
    shape: Rows, vocab: int, table: int, params: SamplingParams
) -> None:
    logits = shape(np.random.default_rng(table), vocab).astype(np.float32)
    kept = reference(logits, params)
    assume(not kept.is_close)
    count = 8
    rows = [row_of(params, position) for position in range(count)]
    tokens = run(np.repeat(logits[None], count, axis=0), rows).tokens
    for token, row in zip(tokens, rows, strict=True):
        assert token in kept.ids
        assert expected(kept, row.draw) in (int(token), None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=1.5, top_k=20),
        SamplingParams(min_p=0.2, top_p=0.95),
    ],
    ids=["neutral", "top_p", "top_k", "min_p"],
)
def test_many_draws_are_spread_as_the_reference_says(shape: Rows, params: SamplingParams) -> None:
    # Chi-square over at most 16 bins of equal mass: beyond 60 once in 3 million with 15 degrees of
    # freedom, and there are 20 of these tests. Seeds are fixed, so the outcome is as well.
    draws = 1200
    logits = shape(np.random.default_rng(3), 2000).astype(np.float32)
    kept = reference(logits, params)
    rows = [row_of(params, position) for position in range(draws)]
    tokens = run(np.repeat(logits[None], draws, axis=0), rows).tokens
    assert set(tokens.tolist()) <= set(kept.ids.tolist())

    mass = np.cumsum(kept.weights) / kept.weights.sum()
    bin_of = {int(id): min(int(m * 16), 15) for id, m in zip(kept.ids, mass, strict=True)}
    share = np.zeros(16)
    for id, weight in zip(kept.ids, kept.weights, strict=True):
        share[bin_of[int(id)]] += weight / kept.weights.sum()
    seen = np.bincount([bin_of[int(token)] for token in tokens], minlength=16)
    used = share * draws > 5
    wanted = share[used] * draws
    assert ((seen[used] - wanted) ** 2 / wanted).sum() < 60


@pytest.mark.parametrize("bias", [{}, {2: 1.0}], ids=["plain", "edited"])
@pytest.mark.parametrize("offset", [0, 300, 10_000, -10_000])
def test_the_border_between_two_tokens_is_where_their_mass_is(
    offset: float, bias: dict[int, float]
) -> None:
    params = SamplingParams(logit_bias=bias)
    for gap in np.arange(0.0, 3.0, 0.05):
        logits = np.array([[offset, offset - gap, -np.inf]], np.float32)
        weights = np.exp(logits[0].astype(float) - offset)
        border = weights[0] / weights.sum()
        draws = (border - 2e-5, border + 2e-5)
        rows = [RowState(params=params, counts=TokenCounts(), draw=draw) for draw in draws]
        assert run(np.repeat(logits, 2, axis=0), rows).tokens.tolist() == [0, 1]


def test_top_p_of_a_flat_row_keeps_no_more_equals_than_it_needs() -> None:
    logits = np.zeros((1, 1000), np.float32)
    rows = [row_of(SamplingParams(top_p=0.5), position) for position in range(400)]
    tokens = run(np.repeat(logits, 400, axis=0), rows).tokens
    # Ids below 500; were 1000 kept, 400 draws would miss the upper half once in 2^400.
    assert tokens.max() < 500


EDITS = st.fixed_dictionaries(
    {},
    optional={
        "logit_bias": st.dictionaries(st.integers(0, 1999), st.floats(-100, 100), max_size=4),
        "allowed_token_ids": st.lists(st.integers(0, 1999), max_size=6).map(tuple),
        "bad_words": st.lists(st.tuples(st.integers(0, 1999)), max_size=3).map(tuple),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.25, 2),
    },
)


def edited(raw: np.ndarray, params: SamplingParams, state: RowState) -> np.ndarray:
    """Return what bias, bans and penalties make of a row, token by token."""
    logits = [float(value) for value in raw]
    for id, bias in params.logit_bias.items():
        logits[id] += bias
    banned = {word[0] for word in params.bad_words}
    allowed = set(params.allowed_token_ids) or set(range(len(logits)))
    banned = banned if allowed - banned else set()
    for id in range(len(logits)):
        if id in banned or id not in allowed:
            logits[id] = -np.inf
            continue
        if id in state.counts.prompt or id in state.counts.output:
            rate = params.repetition_penalty
            logits[id] = logits[id] / rate if logits[id] > 0 else logits[id] * rate
        times = state.counts.output.get(id, 0)
        if times:
            logits[id] -= params.presence_penalty + times * params.frequency_penalty
    return np.array(logits)


@settings(max_examples=100)
@given(table=st.integers(0, 2**32), params=truncations, edits=EDITS)
def test_an_edited_row_is_drawn_like_one_that_was_edited_token_by_token(
    table: int, params: SamplingParams, edits: dict[str, object]
) -> None:
    rng = np.random.default_rng(table)
    logits = broad(rng, 2000).astype(np.float32)
    fields = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    params = SamplingParams(seed=params.seed, **fields, **edits)
    counts = TokenCounts(prompt=frozenset(rng.integers(0, 2000, 300).tolist()))
    for token in rng.integers(0, 2000, 300):
        counts.add(int(token))
    draw = Draws(params.seed, 0).at(0)
    state = RowState(params=params, counts=counts, draw=draw)
    row = edited(logits, params, state)
    # A logit that float32 rounds otherwise than float64 may trade places with its neighbour.
    ordered = np.sort(row[np.isfinite(row)])[::-1][:1001]
    assume((np.diff(ordered) < -1e-5).all() or params.top_k == 0)
    kept = reference(row.astype(np.float32), params)
    assume(not kept.is_close)
    token = int(run(logits[None], [state]).tokens[0])
    assert expected(kept, draw) in (token, None)


@settings(max_examples=60)
@given(
    shapes=st.lists(st.sampled_from(SHAPES), min_size=2, max_size=6),
    table=st.integers(0, 2**32),
    params=st.lists(truncations, min_size=6, max_size=6),
    vocab=st.sampled_from([5, 100, 20_000]),
)
def test_a_row_draws_the_same_alone_and_in_any_batch(
    shapes: list[Rows], table: int, params: list[SamplingParams], vocab: int
) -> None:
    rng = np.random.default_rng(table)
    logits = np.stack([shape(rng, vocab) for shape in shapes]).astype(np.float32)
    rows = [row_of(params[i], position=i) for i in range(len(shapes))]
    together = run(logits, rows).tokens.tolist()
    backwards = run(logits[::-1].copy(), rows[::-1]).tokens.tolist()
    alone = [int(run(logits[i : i + 1], rows[i : i + 1]).tokens[0]) for i in range(len(rows))]
    assert together == alone
    assert backwards == alone[::-1]


@settings(max_examples=80)
@given(
    shape=st.sampled_from(SHAPES),
    vocab=st.sampled_from([1, 64, 300, 1300, 20_000]),
    table=st.integers(0, 2**32),
    count=st.integers(1, 20),
)
def test_top_logprobs_are_those_of_a_full_sort(
    shape: Rows, vocab: int, table: int, count: int
) -> None:
    row = shape(np.random.default_rng(table), vocab).astype(np.float32)
    lse = np.float32(3.0)
    order = np.lexsort((np.arange(vocab), -row))[:count]
    assert top_logprobs(row, lse, count) == [(id, logprob_of(row, lse, id)) for id in order]


def test_top_p_leaves_the_likelier_of_two_tokens_that_the_temperature_makes_equal() -> None:
    logits = np.repeat(np.float32([1.0, 2.0, 0.0]), [2, 400, 598])[None]
    logits[0, 1] = np.nextafter(np.float32(1.0), np.float32(2.0))
    weights = np.exp((logits[0].astype(float) - 2.0) / 100)
    top_p = (weights[2:402].sum() + 0.5 * weights[0]) / weights.sum()
    rows = [
        RowState(params=SamplingParams(temperature=100, top_p=top_p), counts=TokenCounts(), draw=d)
        for d in np.linspace(0.0, 0.999, 2000)
    ]
    assert set(run(np.repeat(logits, 2000, axis=0), rows).tokens.tolist()) == set(range(1, 402))
