"""Replays a bundle's golden prompts, so that a machine that computes something else is noticed.

The exporter recorded what must follow each prompt. Other processors round otherwise, and int8 turns
such differences into larger ones, so it is the logprobs that are compared, and generously: damage
that digests cannot see (a broken kernel, a wrong operator) is off by whole units.
"""

from __future__ import annotations

import statistics

import numpy as np

from ortolan_runtime.bundle import Golden, Manifest
from ortolan_runtime.errors import BundleError
from ortolan_runtime.logits import Output
from ortolan_runtime.model import Model

# Mean difference of logprobs (natural log), in the middle one of the prompts.
_TOLERANCE = 1.0


def check_golden(model: Model, manifest: Manifest) -> None:
    """Raise BundleError when the golden prompts go on otherwise than recorded.

    Runs one prefill and one decode step a prompt, in row 0, which is free again afterwards.
    """
    room = model.length - 1
    deviations = [_deviation(model, g) for g in manifest.golden if len(g.prompt_tokens) <= room]
    model.release(0, 0)
    if deviations and not statistics.median(deviations) <= _TOLERANCE:
        shown = ", ".join(f"{deviation:.2f}" for deviation in deviations)
        raise BundleError(
            f"the bundle {manifest.name} computes something else here than where it was exported: "
            f"the logprobs of its golden prompts differ by {shown}, of which the middle one must "
            f"be <= {_TOLERANCE}; export the model again on this machine"
        )


def _deviation(model: Model, golden: Golden) -> float:
    """Return the mean difference from the recorded logprobs of the first two tokens."""
    prompt = np.array(golden.prompt_tokens, np.int64)
    output = model.prefill(0, prompt, 0, np.array([len(prompt) - 1]))
    differences = [_difference(output, golden, 0)]
    if len(golden.tokens) > 1:
        past = np.array([len(prompt)], np.int32)
        output = model.decode(np.array(golden.tokens[:1], np.int64), past)
        differences.append(_difference(output, golden, 1))
    mean = statistics.fmean(differences)
    return mean if np.isfinite(mean) else float("inf")


def _difference(output: Output, golden: Golden, place: int) -> float:
    logprob = output.logits[0, golden.tokens[place]] - output.logsumexp[0]
    return abs(float(logprob) - golden.logprobs[place])
