"""Every architecture and option, exported in float32, computes what transformers computes.

Each case runs a ragged, right-padded prefill from empty caches, then cached decode steps of rows of
different lengths, in shared buffers that hold garbage where nothing was written.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortolan_export.native import export
from ortolan_export.verify import GraphRunner
from ortolan_runtime.bundle import open_bundle

_TOLERANCE = 1e-4
_PROMPT_LENGTHS = (13, 5, 40)
_STEPS = 12

_LINEAR = {"rope_type": "linear", "factor": 4.0}
_DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_DEEPSEEK_YARN = {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 16.0}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0],
    "original_max_position_embeddings": 32,
}
_MIXED_LAYERS = ["full_attention", "sliding_attention"]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "smollm is a tied llama": ("llama", {"tie_word_embeddings": True, "rope_theta": 100000.0}),
    "llama with attention biases": ("llama", {"attention_bias": True}),
    "llama with mlp biases": ("llama", {"mlp_bias": True}),
    "llama without grouped heads": ("llama", {"num_key_value_heads": 4}),
    "llama with gelu": ("llama", {"hidden_act": "gelu"}),
    "llama with tanh gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama with relu": ("llama", {"hidden_act": "relu"}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral past its sliding window": ("mistral", {"sliding_window": 8}),
    "qwen2": ("qwen2", {}),
    "qwen2 with a window on its last layer": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3 with a window by layer types": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": _MIXED_LAYERS},
    ),
    "qwen3 with attention biases": ("qwen3", {"attention_bias": True}),
    "linear rope": ("llama", {"rope_scaling": _LINEAR}),
    "dynamic rope": ("llama", {"rope_scaling": _DYNAMIC}),
    "llama3 rope": ("llama", {"rope_scaling": _LLAMA3}),
    "yarn rope": ("qwen3", {"rope_scaling": _YARN}),
    "yarn rope with magnitudes": ("llama", {"rope_scaling": _DEEPSEEK_YARN}),
    "long rope past its original length": (
        "llama",
        {"rope_scaling": {**_LONGROPE, "original_max_position_embeddings": 4}},
    ),
    "yarn rope without rounding": ("llama", {"rope_scaling": {**_YARN, "truncate": False}}),
}


def _reference(checkpoint: Path, sequence: list[int]) -> np.ndarray[Any, Any]:
    """Return transformers' logits of every position, float32 ``[length, vocab]``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager"
        )
        with torch.no_grad():
            logits = model(torch.tensor([sequence])).logits
    return np.asarray(logits[0].numpy())


def _worst_difference(bundle: Path, references: list[Any], sequences: list[list[int]]) -> float:
    runner = GraphRunner(bundle, open_bundle(bundle).manifest, rows=3, length=64)
    rows = [seq[:length] for seq, length in zip(sequences, _PROMPT_LENGTHS, strict=True)]
    pasts = [0] * len(rows)
    worst = 0.0
    for _ in range(1 + _STEPS):
        width = max(len(row) for row in rows)
        places = [(r, i) for r, row in enumerate(rows) for i in range(len(row))]
        logits, logsumexp = runner.run(rows, pasts, [r * width + i for r, i in places])
        expected = np.stack([references[r][pasts[r] + i] for r, i in places])
        worst = max(worst, float(np.abs(logits - expected).max()))
        worst = max(worst, float(np.abs(logsumexp - _logsumexp(expected)).max()))
        pasts = [past + len(row) for past, row in zip(pasts, rows, strict=True)]
        rows = [[seq[past]] for seq, past in zip(sequences, pasts, strict=True)]
    return worst


def _logsumexp(logits: Any) -> Any:
    largest = logits.max(axis=1)
    return largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))


def _measure(checkpoint: Path, out: Path, **options: Any) -> float:
    export(checkpoint, out, precision="fp32", **options)
    rng = np.random.default_rng(1)
    sequences = [rng.integers(0, 320, n + _STEPS + 1).tolist() for n in _PROMPT_LENGTHS]
    references = [_reference(checkpoint, sequence) for sequence in sequences]
    return _worst_difference(out, references, sequences)


@pytest.mark.parametrize("case", CASES)
def test_the_float32_graph_equals_transformers(
    case: str, make_checkpoint: Any, tmp_path: Path
) -> None:
    family, config = CASES[case]
    assert _measure(make_checkpoint(family, **config), tmp_path / "out") < _TOLERANCE


def test_longrope_uses_the_short_factors_within_the_original_length(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    scaling = {**_LONGROPE, "original_max_position_embeddings": 64}
    checkpoint = make_checkpoint("llama", rope_scaling=scaling)
    assert _measure(checkpoint, tmp_path / "out", context_length=64) < _TOLERANCE
