"""Reads off what sampling makes of small tables.

A row of logits is written as probabilities. Its outcome is read off evenly spaced draws: of 20
draws at 0.025, 0.075, …, a token of probability 0.25 gets exactly 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortolan_runtime.adjustments import RowState, TokenCounts
from ortolan_runtime.params import SamplingParams
from ortolan_runtime.sampling import sample

TABLE = (0.4, 0.3, 0.2, 0.1)


def row_of(probabilities: Sequence[float]) -> np.ndarray:
    with np.errstate(divide="ignore"):  # probability 0 is a logit of -inf
        return np.log(np.array([probabilities], np.float64)).astype(np.float32)


def logsumexp_of(logits: np.ndarray) -> np.ndarray:
    return np.log(np.exp(logits.astype(np.float64)).sum(axis=1)).astype(np.float32)


def counts_of(output: Sequence[int] = (), prompt: Sequence[int] = ()) -> TokenCounts:
    counts = TokenCounts(prompt=frozenset(prompt))
    for token in output:
        counts.add(token)
    return counts


def shares(
    logits: np.ndarray,
    count: int,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    banned: Sequence[int] = (),
    **params: Any,
) -> list[int]:
    """Return how many of ``count`` evenly spaced draws each token gets; logits are ``[1, n]``."""
    rows = [
        RowState(
            params=SamplingParams(**params),
            counts=counts_of(output, prompt),
            draw=(i + 0.5) / count,
            tokens=[*prompt, *output],
            banned=banned,
        )
        for i in range(count)
    ]
    batch = np.repeat(logits, count, axis=0)
    sampled = sample(batch, np.repeat(logsumexp_of(logits), count), rows)
    assert sampled.is_valid.all()
    return np.bincount(sampled.tokens, minlength=logits.shape[1]).tolist()


def one(logits: np.ndarray, **params: Any) -> int:
    """Return the token of a draw in the middle."""
    return int(np.argmax(shares(logits, 1, **params)))
