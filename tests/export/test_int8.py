"""int8 layers are exact in their integers, and no row feels another."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layers import ArrayTensors, linear_layer, tied_layers

from ortolan_export.quantize import FLAT, UNEVEN, Int8Linears, Limits, quantize_rows
from ortolan_export.verify import GraphRunner
from ortolan_runtime.bundle import open_bundle


def _linear(folder: Path, weight: Any, bias: Any | None = None, limits: Limits = UNEVEN) -> Any:
    """Return a function that runs one int8 linear layer on float32 ``[rows, width]``."""
    arrays = {"layer.weight": weight} | ({} if bias is None else {"layer.bias": bias})
    make = partial(Int8Linears, flat={"layer"} if limits is FLAT else set())
    layer = linear_layer(folder, make, ArrayTensors(arrays), ["layer"])
    return lambda values: layer(values[None])[0]


def _exactly(x: Any, weight: Any, limits: Limits) -> Any:
    """Return what the layer must give, its sums in 64-bit integers."""
    quantised, scales = quantize_rows(weight, limits.weight)
    row_scales = np.abs(x).max(axis=1, keepdims=True)
    activations = np.rint(x / row_scales * limits.activation).astype(np.int64)
    sums = activations @ quantised.T.astype(np.int64)
    return sums * scales.astype(np.float64) * (row_scales / limits.activation)


def _adversarial_inputs(columns: int) -> Any:
    """Return rows whose products are as large as can be, of one sign and of both."""
    rng = np.random.default_rng(3)
    signs = rng.choice([-1.0, 1.0], columns)
    spike = np.zeros(columns)
    spike[5] = 1e4
    rows = [np.ones(columns), -np.ones(columns), signs, -signs, spike + signs, 1e30 * signs]
    return np.stack(rows).astype(np.float32)


@pytest.mark.parametrize("limits", [UNEVEN, FLAT])
@pytest.mark.parametrize("columns", [32, 100, 1536])
def test_products_at_the_limits_do_not_saturate(
    tmp_path: Path, columns: int, limits: Limits
) -> None:
    inputs = _adversarial_inputs(columns)
    weight = np.concatenate([inputs[:4], 0.5 * inputs[:4]])
    for rows in (1, 2, 6):  # one row and many have different kernels
        y = _linear(tmp_path, weight, limits=limits)(inputs[:rows])
        np.testing.assert_allclose(y, _exactly(inputs[:rows], weight, limits), rtol=1e-6)


@pytest.mark.parametrize("limits", [UNEVEN, FLAT])
def test_a_pair_of_products_fits_into_16_bits_on_any_cpu(limits: Limits) -> None:
    """The adversarial test above proves nothing on a CPU with VNNI, whose sums have 32 bits."""
    activations, weights = np.array([0, 2 * limits.activation]), np.array([-1, 1]) * limits.weight
    pairs = np.add.outer(np.outer(activations, weights), np.outer(activations, weights))
    assert np.abs(pairs).max() < 1 << 15


def test_weights_stay_within_their_limit() -> None:
    quantised, scales = quantize_rows(np.array([[-126, 64, 0], [0, 0, 0]], np.float32), 63)
    assert quantised.tolist() == [[-63, 32, 0], [0, 0, 0]]
    assert scales.tolist() == [2.0, 1.0]


def test_a_row_has_the_same_bits_alone_and_beside_extreme_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    layer = _linear(tmp_path, rng.standard_normal((48, 64)).astype(np.float32))
    row = rng.standard_normal((1, 64)).astype(np.float32)
    alone = layer(row)
    for others in (1, 2, 3, 7, 15, 31, 100):
        crowd = (10.0 ** rng.uniform(-20, 20, (others, 64))).astype(np.float32)
        assert layer(np.concatenate([crowd, row]))[-1].tobytes() == alone.tobytes()


def test_a_row_of_zeros_gives_the_bias(tmp_path: Path) -> None:
    weight, bias = np.ones((4, 16), np.float32), np.array([1, -2, 3, 0], np.float32)
    layer = _linear(tmp_path, weight, bias)
    assert layer(np.zeros((2, 16), np.float32)).tolist() == [[1, -2, 3, 0]] * 2


def test_a_row_without_numbers_stays_so_and_spares_its_neighbours(tmp_path: Path) -> None:
    layer = _linear(tmp_path, np.ones((4, 16), np.float32))
    rows = np.ones((3, 16), np.float32)
    rows[1] = np.nan
    y = layer(rows)
    assert np.isnan(y[1]).all()
    assert y[0].tobytes() == y[2].tobytes() == layer(rows[:1])[0].tobytes()


def test_the_whole_graph_gives_a_row_the_same_bits_in_any_batch(tiny_bundle: Path) -> None:
    manifest = open_bundle(tiny_bundle).manifest
    runner = GraphRunner(tiny_bundle, manifest, rows=5, length=64)
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, 256, length).tolist() for length in (7, 2, 30, 16, 3)]
    alone = [runner.last([prompt], [0])[0][0] for prompt in prompts]
    together, _ = runner.last(prompts, [0] * 5)
    assert [row.tobytes() for row in together] == [row.tobytes() for row in alone]


def test_a_tied_head_gives_the_bits_of_a_linear_layer_and_is_stored_once(tmp_path: Path) -> None:
    table = np.random.default_rng(6).standard_normal((320, 64)).astype(np.float32)
    rows, logits = tied_layers(tmp_path, Int8Linears, table)(np.array([3, 319, 0]))
    assert np.abs(rows - table[[3, 319, 0]]).max() <= np.abs(table).max() / 63 / 2
    assert logits.tobytes() == _linear(tmp_path, table)(rows).tobytes()
    one_table = 320 * 64
    assert (tmp_path / "tied.onnx.data").stat().st_size < 1.5 * one_table


def test_int8_logprobs_are_near_those_of_float32(
    glass_bundle: Path, glass_bundle_fp32: Path
) -> None:
    manifests = [open_bundle(path).manifest for path in (glass_bundle, glass_bundle_fp32)]
    runners = [
        GraphRunner(path, manifest, rows=1, length=128)
        for path, manifest in zip((glass_bundle, glass_bundle_fp32), manifests, strict=True)
    ]
    prompt = list(manifests[0].golden[0].prompt_tokens)
    everywhere = range(len(prompt))
    int8, fp32 = (
        logits - lse[:, None]
        for logits, lse in (runner.run([prompt], [0], everywhere) for runner in runners)
    )
    likely = fp32 > -7
    assert np.abs(int8 - fp32)[likely].mean() < 0.1


def test_the_logsumexp_of_a_row_has_the_same_bits_in_a_batch_of_any_size(tiny_bundle: Path) -> None:
    runner = GraphRunner(tiny_bundle, open_bundle(tiny_bundle).manifest, rows=1, length=64)
    prompt = np.random.default_rng(8).integers(0, 256, 40).tolist()
    alone = [runner.run([prompt], [0], [place])[1][0] for place in range(40)]
    for count in range(2, 12):
        _, together = runner.run([prompt], [0], list(range(count)))
        assert together.tobytes() == np.array(alone[:count]).tobytes()
