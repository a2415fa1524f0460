"""Turning the residual stream and sharing ranges change nothing in float32, and help int8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortolan_export.architectures.arrangement import ArrangedTensors
from ortolan_export.architectures.family import Decoder
from ortolan_export.architectures.plan import plan_decoder
from ortolan_export.balance import BalancedTensors, watched_modules
from ortolan_export.blocks import Blocks
from ortolan_export.checkpoint import HuggingFaceCheckpoint
from ortolan_export.native import export
from ortolan_export.operators import FusedGraph
from ortolan_export.quantize import FloatLinears
from ortolan_export.rotation import (
    RotatedTensors,
    RotatedValues,
    Rotation,
    flatten_activations,
)
from ortolan_export.source import Tensors
from ortolan_export.verify import GraphRunner
from ortolan_export.weightfile import WeightFile
from ortolan_runtime.bundle import GRAPH_NAME, WEIGHTS_NAME, GraphNames, Manifest, open_bundle

_NAMES = GraphNames(logsumexp="logsumexp")
_PROMPTS = [list(range(3, 40)), list(range(90, 95))]

Prepare = Callable[[Tensors, Decoder], Tensors]


def _lopsided(tensors: Tensors, decoder: Decoder) -> Tensors:
    """Share ranges by activities that differ a thousandfold."""
    activity = {
        module: np.geomspace(0.01, 10, tensors.shapes[f"{module}.weight"][1]).astype(np.float32)
        for module in watched_modules(decoder)
    }
    return BalancedTensors(tensors, decoder, activity)


_WAYS: dict[str, Prepare] = {
    "stream": lambda t, d: RotatedTensors(t, d, keeps_tables=False),
    "stream between tables": lambda t, d: RotatedTensors(t, d, keeps_tables=True),
    "values": RotatedValues,
    "ranges": _lopsided,
    "all": lambda t, d: _lopsided(flatten_activations(t, d, is_shared=False).tensors, d),
    "all beside another graph": lambda t, d: flatten_activations(t, d, is_shared=True).tensors,
}
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "untied": ("qwen2", {"num_key_value_heads": 1}),
    "norms on Q and K": ("qwen3", {"head_dim": 32}),
    "norm offset and scaled": ("gemma", {}),
    "packed": ("phi3", {}),
}


def _logits(folder: Path, tensors: Tensors, decoder: Decoder) -> Any:
    """Return the logits of every position of a ragged prefill, in float32."""
    folder.mkdir()
    with WeightFile(folder / WEIGHTS_NAME) as weights:
        graph = FusedGraph(weights)
        linears = FloatLinears(graph, tensors)
        Blocks(graph, linears, tensors, decoder, _NAMES).build()
    graph.save(folder / GRAPH_NAME)
    manifest = Manifest(
        name="",
        architecture="",
        source_digest="",
        precision="fp32",
        context_length=decoder.context_length,
        vocab_size=decoder.vocab_size,
        layers=decoder.layers,
        kv_heads=decoder.kv_heads,
        head_size=decoder.head_size,
        graph=_NAMES,
        exporter_version="",
    )
    runner = GraphRunner(folder, manifest, rows=2, length=64)
    positions = [*range(len(_PROMPTS[0])), len(_PROMPTS[0]), len(_PROMPTS[0]) + 4]
    return runner.run(_PROMPTS, [0, 0], positions)[0]


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("model", _MODELS)
def test_the_float32_logits_stay_within_1e_4(
    model: str, way: str, make_checkpoint: Any, tmp_path: Path
) -> None:
    family, config = _MODELS[model]
    checkpoint = HuggingFaceCheckpoint(make_checkpoint(family, **config))
    decoder = plan_decoder(checkpoint)
    tensors = ArrangedTensors(checkpoint, decoder)
    expected = _logits(tmp_path / "plain", tensors, decoder)
    turned = _logits(tmp_path / "turned", _WAYS[way](tensors, decoder), decoder)
    assert np.abs(turned - expected).max() < 1e-4


@pytest.mark.parametrize("width", [1, 7, 16, 24, 96, 576, 896, 1536])
def test_a_rotation_is_orthogonal_and_spreads_a_channel_over_all(width: int) -> None:
    matrix = Rotation(width).apply(np.eye(width, dtype=np.float32))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(width), atol=1e-5)
    if width > 16:
        assert np.abs(matrix).max() < 0.6


def test_a_rotation_is_the_same_every_time() -> None:
    row = np.arange(48, dtype=np.float32)
    assert Rotation(48).apply(row).tobytes() == Rotation(48).apply(row).tobytes()


@pytest.mark.parametrize("family", ["gemma2", "gpt2", "opt", "olmo2", "mixtral"])
def test_families_whose_stream_cannot_turn_are_left_alone(
    family: str, make_checkpoint: Any
) -> None:
    decoder = plan_decoder(HuggingFaceCheckpoint(make_checkpoint(family)))
    assert not decoder.can_be_rotated


def test_a_slice_of_rows_is_a_slice_of_the_whole(make_checkpoint: Any) -> None:
    checkpoint = HuggingFaceCheckpoint(make_checkpoint("llama", tie_word_embeddings=True))
    decoder = plan_decoder(checkpoint)
    tensors = _WAYS["all"](checkpoint, decoder)
    for name in tensors.shapes:
        np.testing.assert_array_equal(tensors.read(name, 5, 9), tensors.read(name)[5:9])


def test_outliers_cost_an_int8_bundle_little(glass_checkpoint: Path, tmp_path: Path) -> None:
    """One channel of the stream is a hundred times louder, as large models have it."""
    loud = _with_a_loud_channel(glass_checkpoint, tmp_path / "loud")
    export(loud, tmp_path / "int8", precision="int8")
    export(loud, tmp_path / "fp32", precision="fp32")
    int8, fp32 = (_logprobs(tmp_path / name) for name in ("int8", "fp32"))
    likely = fp32 > -7
    assert np.abs(int8 - fp32)[likely].mean() < 0.1


def _with_a_loud_channel(source: Path, folder: Path) -> Path:
    """Write a checkpoint that computes the same, with one channel loud between norm and layers."""
    import shutil

    from safetensors.numpy import load_file, save_file

    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, array in tensors.items():
        if name.endswith("layernorm.weight"):
            array[3] *= 100
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            array[:, 3] /= 100
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            array[:, 3] /= 100
    save_file(tensors, folder / "model.safetensors")
    return folder


def _logprobs(bundle: Path) -> Any:
    manifest = open_bundle(bundle).manifest
    runner = GraphRunner(bundle, manifest, rows=1, length=128)
    prompt = list(manifest.golden[0].prompt_tokens)
    logits, logsumexp = runner.run([prompt], [0], range(len(prompt)))
    return logits - logsumexp[:, None]
