"""Logprobs of a prompt are those of the model, token by token, however it is cut up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from engines import engine_on, request, together

from ortolan_runtime.bundle import open_bundle
from ortolan_runtime.engine import Engine
from ortolan_runtime.model import Model

TEXT = "Alice was beginning to get very tired of sitting by her sister on the bank"


@pytest.fixture(scope="module")
def engine(glass_bundle: Path) -> Iterator[Engine]:
    with engine_on(glass_bundle, slots=4, prefill_chunk=8) as engine:
        yield engine


@pytest.fixture(scope="module")
def logprobs(glass_bundle: Path) -> np.ndarray:
    """Give the logprobs of all tokens at all positions of the text, float32 ``[n, vocab]``."""
    bundle = open_bundle(glass_bundle)
    model = Model(bundle, rows=2, length=128, threads=1)
    with engine_on(glass_bundle, slots=1) as engine:
        ids = np.array(engine.tokenizer.encode(TEXT))
    logits = model.prefill(0, ids, 0, np.arange(len(ids))).logits.astype(np.float64)
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


def test_each_prompt_token_has_the_models_logprob_and_the_first_has_none(
    engine: Engine, logprobs: np.ndarray
) -> None:
    ids = engine.tokenizer.encode(TEXT)
    (outcome,) = together(engine, [request(ids, max_tokens=1, prompt_logprobs=0)])
    scores = outcome.prompt
    assert [score.id for score in scores] == ids
    assert scores[0].logprob is None
    assert len(ids) > 2 * 8  # three chunks at least
    wanted = [logprobs[i, ids[i + 1]] for i in range(len(ids) - 1)]
    assert [score.logprob for score in scores[1:]] == pytest.approx(wanted, abs=1e-5)


def test_the_likeliest_tokens_at_each_position_are_the_models(
    engine: Engine, logprobs: np.ndarray
) -> None:
    ids = engine.tokenizer.encode(TEXT)
    (outcome,) = together(engine, [request(ids, max_tokens=1, prompt_logprobs=4)])
    assert outcome.prompt[0].top == ()
    for position, score in enumerate(outcome.prompt[1:]):
        best = np.argsort(-logprobs[position], kind="stable")[:4]
        assert [id for id, _ in score.top] == best.tolist()


def test_a_prompt_token_that_is_the_likeliest_has_the_very_number_of_the_top_one(
    engine: Engine,
) -> None:
    ids = engine.tokenizer.encode(TEXT)
    (outcome,) = together(engine, [request(ids, max_tokens=1, prompt_logprobs=1)])
    greedy = [s for s in outcome.prompt[1:] if s.top[0][0] == s.id]
    assert greedy
    assert all(score.logprob == score.top[0][1] for score in greedy)


def test_the_pieces_of_a_prompt_join_to_its_text(engine: Engine) -> None:
    ids = engine.tokenizer.encode(TEXT)
    (outcome,) = together(engine, [request(ids, max_tokens=1, prompt_logprobs=0)])
    assert "".join(score.text for score in outcome.prompt) == TEXT


def test_scores_come_once_and_before_any_text(engine: Engine) -> None:
    ids = engine.tokenizer.encode(TEXT)
    (outcome,) = together(engine, [request(ids, max_tokens=5, prompt_logprobs=0)])
    assert [bool(event.prompt) for event in outcome.events].index(True) == 0
    assert sum(bool(event.prompt) for event in outcome.events) == 1
    assert outcome.events[0].text == ""


def test_scoring_alone_decodes_nothing(engine: Engine) -> None:
    ids = engine.tokenizer.encode(TEXT)
    before = engine.statistics().decode_steps
    (outcome,) = together(engine, [request(ids, max_tokens=0, prompt_logprobs=1)])
    assert engine.statistics().decode_steps == before
    assert (outcome.text, outcome.ending.reason) == ("", "length")
    assert outcome.ending.completion_tokens == 0
    assert len(outcome.prompt) == len(ids)


def test_a_prompt_as_long_as_the_context_can_be_scored(engine: Engine) -> None:
    ids = (engine.tokenizer.encode(TEXT) * 20)[:128]
    (outcome,) = together(engine, [request(ids, max_tokens=0, prompt_logprobs=0)])
    assert len(outcome.prompt) == 128


def test_a_prompt_of_one_token_has_nothing_to_score(engine: Engine) -> None:
    (outcome,) = together(engine, [request([40], max_tokens=0, prompt_logprobs=3)])
    assert [(score.id, score.logprob, score.top) for score in outcome.prompt] == [(40, None, ())]


def test_scoring_says_the_same_behind_a_warm_cache(engine: Engine) -> None:
    ids = engine.tokenizer.encode(TEXT)
    one = request(ids, max_tokens=3, prompt_logprobs=2, temperature=0.0)
    together(engine, [request(ids, max_tokens=1)])
    assert together(engine, [one])[0].bits() == together(engine, [one, one])[1].bits()


def test_a_scored_prompt_serves_later_ones_as_a_beginning(engine: Engine) -> None:
    ids = engine.tokenizer.encode("The Queen said nothing at all to the King")
    together(engine, [request(ids, max_tokens=0, prompt_logprobs=0)])
    (outcome,) = together(engine, [request([*ids, 11], max_tokens=1)])
    assert outcome.cached_tokens == len(ids) - 1
