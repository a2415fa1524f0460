"""Compares what two bundles of one model say next, so that a precision's cost is known.

4-bit layers whose activations are quantised too choose another greedy token now and then, most of
all in models with outlier channels; how often is a property of the model, and must be measured.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from ortolan_export.checking import Check
from ortolan_export.checkpoint import load_tokenizer
from ortolan_export.errors import VerificationError
from ortolan_export.sample import TEXT
from ortolan_export.source import Float32
from ortolan_export.verify import open_runner
from ortolan_runtime.bundle import TOKENIZER_NAME, Bundle, open_bundle

_PROMPTS = 50
_PROMPT_TOKENS = 16


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How two bundles agree on the next token of ``prompts`` prompts.

    ``same`` is the share with the same likeliest token, ``largest_difference`` that of any two
    logits.
    """

    prompts: int
    same: float
    largest_difference: float


def check_agreement(path: Path, reference: Path, least: float) -> Check:
    """Return whether the bundle at ``path`` agrees with ``reference`` in a share ``least`` of
    prompts.

    Raises BundleError and VerificationError.
    """
    found = measure_agreement(path, reference)
    name = open_bundle(reference).manifest
    finding = (
        f"{100 * found.same:.0f} % of {found.prompts} greedy tokens are those of {name.name} "
        f"({name.precision}), logits differ by {found.largest_difference:.2g} at most"
    )
    return Check(f"agreement of at least {100 * least:.0f} %", finding, found.same >= least)


def measure_agreement(path: Path, reference: Path) -> Agreement:
    """Return how the bundle at ``path`` agrees with ``reference``, a bundle of the same model.

    Every prompt but its last token is prefilled, the last decoded, as the server does it. Raises
    BundleError, and VerificationError when the two are not of one model.
    """
    ours, theirs = open_pair(path, reference)
    prompts = _prompts(ours)
    one, other = _next_logits(ours, prompts), _next_logits(theirs, prompts)
    return Agreement(
        prompts=len(prompts),
        same=float((one.argmax(axis=1) == other.argmax(axis=1)).mean()),
        largest_difference=float(np.abs(one - other).max()),
    )


def open_pair(path: Path, reference: Path) -> tuple[Bundle, Bundle]:
    """Return two bundles. Raises BundleError, VerificationError if they are not of one model."""
    ours, theirs = open_bundle(path), open_bundle(reference)
    if ours.manifest.vocab_size != theirs.manifest.vocab_size:
        raise VerificationError(
            f"{reference} must have a vocabulary of {ours.manifest.vocab_size} as {path} has, "
            f"got {theirs.manifest.vocab_size}; compare bundles of one model"
        )
    return ours, theirs


def _prompts(bundle: Bundle) -> list[list[int]]:
    """Return pieces of a text of many kinds, that begin at different places."""
    text = bundle.tokenizer_path.read_text(encoding="utf-8")
    ids = load_tokenizer(text, TOKENIZER_NAME).encode(TEXT).ids
    length = min(_PROMPT_TOKENS, bundle.manifest.context_length)
    starts = np.linspace(0, max(len(ids) - length, 0), _PROMPTS).astype(int)
    return [ids[start : start + length] for start in dict.fromkeys(starts.tolist())]


def _next_logits(bundle: Bundle, prompts: list[list[int]]) -> Float32:
    """Return the logits after each prompt, float32 ``[prompts, vocab]``."""
    length = max(map(len, prompts))
    runner = open_runner(bundle.path, bundle.manifest, rows=2, length=length)
    rows = []
    for prompt in prompts:
        # Two equal rows, so that precisions whose lone row rounds otherwise show what they serve.
        runner.last([prompt[:-1]] * 2, [0, 0])
        logits, _ = runner.last([prompt[-1:]] * 2, [len(prompt) - 1] * 2)
        rows.append(logits[0].copy())
    return np.stack(rows)
