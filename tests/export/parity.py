"""Runs an exported graph in every way that it can be run, and compares it with transformers.

The ways are a ragged prefill, padded on the right, from empty caches; then cached decode steps of
rows of different lengths; and one row by itself in chunks on top of what is cached. All in shared
buffers that hold garbage where nothing was written.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ortolan_export.gguf import GGUFCheckpoint
from ortolan_export.verify import open_runner
from ortolan_runtime.bundle import open_bundle

VOCAB_SIZE = 320
_PROMPT_LENGTHS = (13, 5, 40)
_STEPS = 12
_CHUNK = 9
_ROOM = 64

Comparison = tuple[Any, Any, Any]  # logits, log-sum-exp, and the logits expected


class Reference:
    """What transformers computes, in float32 and by its plainest code, for three sequences.

    ``checkpoint`` is a Hugging Face directory or a GGUF file.
    """

    def __init__(self, checkpoint: Path) -> None:
        rng = np.random.default_rng(1)
        lengths = [prompt + _STEPS + 1 for prompt in _PROMPT_LENGTHS]
        self.sequences = [rng.integers(0, VOCAB_SIZE, n).tolist() for n in lengths]
        self.logits = _transformers_logits(checkpoint, self.sequences)


def worst_difference(bundle: Path, reference: Reference) -> float:
    """Return the largest difference of a logit or a log-sum-exp."""
    return max(
        float(np.abs(given - wanted).max())
        for logits, logsumexp, expected in _everything(bundle, reference)
        for given, wanted in ((logits, expected), (logsumexp, _logsumexp(expected)))
    )


def relative_error(bundle: Path, reference: Reference) -> float:
    """Return the root mean square of the logits' error, as a share of the logits' own spread."""
    pairs = [(logits, expected) for logits, _, expected in _everything(bundle, reference)]
    logits, expected = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    return float(np.sqrt(np.square(logits - expected).mean()) / expected.std())


def has_the_same_bits_in_chunks(bundle: Path, reference: Reference) -> bool:
    """Return whether a prompt in chunks by itself gives the bits that it has in a batch."""
    prefill, _, _ = next(_in_a_batch(bundle, reference))
    together = prefill[-_PROMPT_LENGTHS[-1] :]
    alone = np.concatenate([logits for logits, _, _ in _in_chunks(bundle, reference)])
    return together.tobytes() == alone[: len(together)].tobytes()


def _everything(bundle: Path, reference: Reference) -> Iterator[Comparison]:
    yield from _in_a_batch(bundle, reference)
    yield from _in_chunks(bundle, reference)


def _in_a_batch(bundle: Path, reference: Reference) -> Iterator[Comparison]:
    sequences = reference.sequences
    runner = open_runner(bundle, open_bundle(bundle).manifest, rows=len(sequences), length=_ROOM)
    rows = [seq[:length] for seq, length in zip(sequences, _PROMPT_LENGTHS, strict=True)]
    pasts = [0] * len(rows)
    for _ in range(1 + _STEPS):
        width = max(len(row) for row in rows)
        places = [(r, i) for r, row in enumerate(rows) for i in range(len(row))]
        outputs = runner.run(rows, pasts, [r * width + i for r, i in places])
        yield *outputs, np.stack([reference.logits[r][pasts[r] + i] for r, i in places])
        pasts = [past + len(row) for past, row in zip(pasts, rows, strict=True)]
        rows = [[seq[past]] for seq, past in zip(sequences, pasts, strict=True)]


def _in_chunks(bundle: Path, reference: Reference) -> Iterator[Comparison]:
    runner = open_runner(bundle, open_bundle(bundle).manifest, rows=1, length=_ROOM)
    sequence, expected = reference.sequences[-1], reference.logits[-1]
    for past in range(0, len(sequence), _CHUNK):
        chunk = sequence[past : past + _CHUNK]
        outputs = runner.run([chunk], [past], list(range(len(chunk))))
        yield *outputs, expected[past : past + len(chunk)]


def _logsumexp(logits: Any) -> Any:
    largest = logits.max(axis=1)
    return largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))


def _transformers_logits(checkpoint: Path, sequences: list[list[int]]) -> list[Any]:
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        import torch
        from transformers import AutoModelForCausalLM

        directory = _as_directory(checkpoint, Path(folder)) if checkpoint.is_file() else checkpoint
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        torch.set_num_threads(1)  # tiny products gain nothing from more
        with torch.no_grad():
            return [model(torch.tensor([sequence])).logits[0].numpy() for sequence in sequences]


def _as_directory(file: Path, folder: Path) -> Path:
    """Write the weights of a GGUF file as transformers reads them; return the folder."""
    source = GGUFCheckpoint(file)
    save_file({name: source.read(name) for name in source.shapes}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(dict(source.config)))
    return folder
