"""Replays a bundle's golden prompts, so that a machine that computes something else is noticed.

The exporter recorded what must follow each prompt. Other processors round otherwise, and int8 turns
such differences into larger ones, so it is the logprobs that are compared, and generously: damage
that digests cannot see (a broken kernel, a wrong operator) is off by whole units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ortolan_runtime.bundle import Golden, Manifest
from ortolan_runtime.errors import BundleError
from ortolan_runtime.logits import Output
from ortolan_runtime.model import Model

# Mean difference of logprobs (natural log), in the middle one of the prompts.
_TOLERANCE = 1.0


def check_golden(model: Model, manifest: Manifest, *, rows: int) -> None:
    """Raise BundleError when the golden prompts go on otherwise than recorded.

    Runs one prefill a prompt, and one decode step for up to ``rows`` prompts together, in the first
    rows, which are free again afterwards.
    """
    room = model.length - 1
    golden = [g for g in manifest.golden if len(g.prompt_tokens) <= room]
    deviations = [
        deviation
        for start in range(0, len(golden), rows)
        for deviation in _deviations(model, golden[start : start + rows])
    ]
    if deviations and not np.median(deviations) <= _TOLERANCE:
        shown = ", ".join(f"{deviation:.2f}" for deviation in deviations)
        raise BundleError(
            f"the bundle {manifest.name} computes something else here than where it was exported: "
            f"the logprobs of its golden prompts differ by {shown}, of which the middle one must "
            f"be <= {_TOLERANCE}; export the model again on this machine"
        )


def _deviations(model: Model, golden: Sequence[Golden]) -> Iterator[float]:
    """Give each prompt's mean difference from the recorded logprobs of its first two tokens."""
    first = [_prefill_difference(model, row, g) for row, g in enumerate(golden)]
    tokens = np.array([g.tokens[0] for g in golden], np.int64)
    past = np.array([len(g.prompt_tokens) for g in golden], np.int32)
    output = model.decode(tokens, past)
    for row, g in enumerate(golden):
        both = [first[row]]
        if len(g.tokens) > 1:
            both.append(_difference(output, row, g, 1))
        model.release(row, 0)
        mean = float(np.mean(both))
        yield mean if np.isfinite(mean) else float("inf")


def _prefill_difference(model: Model, row: int, golden: Golden) -> float:
    prompt = np.array(golden.prompt_tokens, np.int64)
    return _difference(model.prefill(row, prompt, 0, np.array([len(prompt) - 1])), 0, golden, 0)


def _difference(output: Output, row: int, golden: Golden, place: int) -> float:
    logprob = output.logits[row, golden.tokens[place]] - output.logsumexp[row]
    return abs(float(logprob) - golden.logprobs[place])
