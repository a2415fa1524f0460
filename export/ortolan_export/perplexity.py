"""Measures how well a bundle predicts a text, by itself or next to another precision's bundle."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ortolan_export.agreement import open_pair
from ortolan_export.checking import Check
from ortolan_export.checkpoint import load_tokenizer
from ortolan_export.errors import VerificationError
from ortolan_export.progress import Report
from ortolan_export.sample import TEXT
from ortolan_export.verify import open_runner
from ortolan_runtime.bundle import TOKENIZER_NAME, Bundle, open_bundle

_WINDOW = 512  # tokens that are predicted from each other alone, as other tools have it too
_CHUNK = 64  # whose logits are held at once: 39 MB at 152,000 tokens


def check_perplexity(
    path: Path, text: Path | None, reference: Path | None, most: float, report: Report
) -> Check:
    """Return the perplexity of the bundle at ``path`` on the file ``text``, None a built-in one.

    It passes where it is a number, and with a ``reference`` where it is at most ``most`` times that
    bundle's. Raises BundleError, VerificationError and OSError.
    """
    bundle, other = (open_bundle(path), None) if reference is None else open_pair(path, reference)
    ids = _tokens(bundle, text)
    ours = measure_perplexity(bundle, ids, report)
    finding = f"{ours:.3f} over {len(ids)} tokens"
    if other is None:
        return Check("perplexity", finding, math.isfinite(ours))
    theirs = measure_perplexity(other, ids, report)
    finding += f", {ours / theirs:.4f} times that of {other.manifest.name}"
    finding += f" ({other.manifest.precision}), {theirs:.3f}"
    return Check(f"perplexity of at most {most:g} times", finding, ours <= most * theirs)


def measure_perplexity(bundle: Bundle, ids: Sequence[int], report: Report) -> float:
    """Return exp of the mean loss (natural log) of each token but every window's first.

    The windows are 512 tokens long, or as the context is. ``report`` is told (stage, tokens done,
    tokens in all).
    """
    window = min(_WINDOW, bundle.manifest.context_length)
    runner = open_runner(bundle.path, bundle.manifest, rows=1, length=window)
    stage = f"scoring a text with {bundle.manifest.precision}"
    losses: list[float] = []
    for start in range(0, len(ids), window):
        report(stage, start, len(ids))
        row = list(ids[start : start + window])
        for past, chunk in _chunks(row):
            logits, logsumexp = runner.run([chunk], [past], list(range(len(chunk))))
            following = row[past + 1 : past + 1 + len(chunk)]
            places = np.arange(len(following))
            losses += (logsumexp[places] - logits[places, following]).tolist()
    report(stage, len(ids), len(ids))
    mean = math.fsum(losses) / len(losses)
    return math.exp(mean) if math.isfinite(mean) else math.inf


def _chunks(row: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Give pieces of at least 2 tokens with how many tokens precede each.

    One token by itself would be a decode step. A row of one token predicts nothing.
    """
    starts = [*range(0, max(len(row) - 1, 0), _CHUNK), len(row)]
    for start, stop in zip(starts, starts[1:], strict=False):
        yield start, list(row[start:stop])


def _tokens(bundle: Bundle, text: Path | None) -> list[int]:
    """Return the ids of a text. Raises VerificationError for one that has not two."""
    try:
        content = TEXT if text is None else text.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise VerificationError(f"{text} must be text in UTF-8, got other bytes ({exc})") from exc
    tokenizer = load_tokenizer(bundle.tokenizer_path.read_text(encoding="utf-8"), TOKENIZER_NAME)
    ids: list[int] = tokenizer.encode(content, add_special_tokens=False).ids
    if len(ids) < 2:
        raise VerificationError(f"{text} must have at least 2 tokens, got {len(ids)}")
    return ids
