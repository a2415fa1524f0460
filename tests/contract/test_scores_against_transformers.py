"""The scores that evaluation tools read are those of the source model.

On a float32 bundle they are equal but for rounding; int8 costs what is measured here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import Server, serving

TEXTS = (
    "Alice was beginning to get very tired of sitting by her sister on the bank",
    "said the Hatter, and the March Hare went on",
    "It was the best of times",
)
ROUNDING = 2e-4  # of natural logs: float32 sums in another order
INT8_MEAN = 0.12  # nats a token, with int8 weights and activations on a model of width 128


@pytest.fixture(scope="module")
def exact(glass_bundle_fp32: Path) -> Iterator[Server]:
    """Give a server of the model in float32."""
    with serving(glass_bundle_fp32) as server:
        yield server


@pytest.fixture(scope="module")
def source(glass_checkpoint: Path) -> Any:
    """Give the model as transformers loads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch and transformers say at import is theirs
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(glass_checkpoint, dtype=torch.float32)


def source_scores(source: Any, ids: list[int]) -> np.ndarray:
    """Return the logprob of each token but the first, float64 ``[len(ids) - 1]``."""
    import torch

    with torch.no_grad():
        logits = source(torch.tensor([ids])).logits[0, :-1].double()
    scores = torch.log_softmax(logits, dim=-1)
    return np.array([float(scores[i, token]) for i, token in enumerate(ids[1:])])


def served_scores(server: Server, prompts: list[list[int]]) -> list[list[float]]:
    """Return the logprobs as lm-eval asks for them: all but the first and the generated one."""
    fields = {"echo": True, "max_tokens": 1, "logprobs": 1, "seed": 1234}
    choices = server.complete(prompts, **fields)["choices"]
    return [choice["logprobs"]["token_logprobs"][1:-1] for choice in choices]


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_float32_scores_are_the_sources(exact: Server, source: Any, in_one_batch: bool) -> None:
    """In a batch of unequal lengths and alone."""
    prompts = [exact.post("/tokenize", {"prompt": text}).json()["tokens"] for text in TEXTS]
    if in_one_batch:
        served = served_scores(exact, prompts)
    else:
        served = [served_scores(exact, [ids])[0] for ids in prompts]
    for ids, scores in zip(prompts, served, strict=True):
        assert scores == pytest.approx(source_scores(source, ids), abs=ROUNDING)


def test_int8_scores_are_near_the_sources(glass: Server, source: Any) -> None:
    """By the mean over tokens."""
    prompts = [glass.post("/tokenize", {"prompt": text}).json()["tokens"] for text in TEXTS]
    served = np.concatenate([np.array(scores) for scores in served_scores(glass, prompts)])
    wanted = np.concatenate([source_scores(source, ids) for ids in prompts])
    assert np.abs(served - wanted).mean() < INT8_MEAN
