"""Bundles of two weight formats: int8 for prompts, int4 for decoding, one KV cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from engines import alone, assert_same, engine_on, mixed_requests, request, together

from ortolan_runtime.bundle import open_bundle
from ortolan_runtime.model import Model

PROMPT = list(range(40, 60))


def model_of(bundle: Path) -> Model:
    return Model(open_bundle(bundle), rows=4, length=128, threads=1)


def test_prompts_are_scored_as_well_as_by_int8_alone(
    glass_bundle_phased: Path, glass_bundle: Path, glass_bundle_fp32: Path
) -> None:
    # Not to the bit: what int8 alone folds into values and tables, int4 could not share.
    scoring = request(PROMPT, temperature=0.0, max_tokens=1, prompt_logprobs=0)
    scores = []
    for bundle in (glass_bundle_fp32, glass_bundle, glass_bundle_phased):
        with engine_on(bundle) as engine:
            (outcome,) = alone(engine, [scoring])
        scores.append(np.array([token.logprob for token in outcome.prompt[1:]]))
    exact, int8, both = scores
    assert np.abs(both - exact).mean() < 2 * np.abs(int8 - exact).mean() + 0.02


def test_decoding_is_that_of_int4_alone_on_the_same_cache(
    glass_bundle_phased: Path, glass_bundle_int4: Path
) -> None:
    both, four = model_of(glass_bundle_phased), model_of(glass_bundle_int4)
    tokens = np.array(PROMPT)
    both.prefill(0, tokens, 0, np.array([len(PROMPT) - 1]))
    four.prefill(0, tokens, 0, np.array([len(PROMPT) - 1]))
    for ours, theirs in zip(four.buffers.arrays, both.buffers.arrays, strict=True):
        ours[1, :, : len(PROMPT)] = theirs[1, :, : len(PROMPT)]  # row 0 is the spare one
    for step, token in enumerate((5, 6, 7)):
        past = np.array([len(PROMPT) + step], np.int32)
        row = np.array([token])
        assert both.decode(row, past).logits.tobytes() == four.decode(row, past).logits.tobytes()


def test_the_phase_and_not_the_batch_decides(glass_bundle_phased: Path) -> None:
    requests = mixed_requests(glass_bundle_phased)
    with engine_on(glass_bundle_phased, slots=1) as engine:
        expected = alone(engine, requests)
    little = 128 * open_bundle(glass_bundle_phased).manifest.kv_bytes_per_token
    for prefill_chunk, memory in ((7, None), (32, little)):
        options = {"slots": 16, "prefill_chunk": prefill_chunk, "kv_memory_bytes": memory}
        with engine_on(glass_bundle_phased, **options) as engine:
            assert_same(together(engine, requests), expected)


def test_guesses_are_checked_by_the_graph_that_decodes(glass_bundle_phased: Path) -> None:
    repeating = [50, 51, 52, 53, 54, 55] * 4
    one = request(repeating, temperature=0.0, max_tokens=40, ignore_eos=True)
    with engine_on(glass_bundle_phased, slots=1) as engine:
        (plain,) = alone(engine, [one])
    with engine_on(glass_bundle_phased, slots=1, speculate=True) as engine:
        (guessed,) = alone(engine, [one])
    same = sum(a == b for a, b in zip(plain.ids, guessed.ids, strict=True))
    assert same >= 30  # all but for float ties, after which the texts may part
