"""4-bit layers keep a source's own blocks, meet other values closely, and spare the head."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx_ir as ir
import pytest
from layers import ArrayTensors, linear_layer, tied_layers

from ortolan_export.fourbits import (
    FourBits,
    keep_blocks,
    nearest_blocks,
    own_blocks,
    packed_zero_points,
)
from ortolan_export.int4 import Int4Linears
from ortolan_export.native import export
from ortolan_export.source import BLOCK_SIZES, BlockSize, SourceRows
from ortolan_runtime.bundle import GRAPH_NAME, WEIGHTS_NAME, open_bundle
from ortolan_runtime.model import Model

# Sums in float32 tell what the blocks hold, which 8-bit activations would blur.
_EXACT = partial(Int4Linears, accuracy_level=0)


def _matrix(rows: int, columns: int, seed: int = 7) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def _source(kind: str, matrix: Any) -> tuple[SourceRows, Any]:
    raw = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType[kind])
    values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    return SourceRows(kind, raw), values


def _restored(blocks: FourBits) -> Any:
    """Return the values that ``blocks`` stand for, float32 ``[rows, blocks * size]``."""
    codes = np.stack([blocks.codes & 15, blocks.codes >> 4], axis=-1)
    codes = codes.reshape(*blocks.scales.shape, blocks.block_size).astype(np.float32)
    values = (codes - blocks.zero_points[..., None]) * blocks.scales[..., None]
    return (values + blocks.rests[..., None]).reshape(len(codes), -1)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_a_gguf_files_own_blocks_keep_codes_and_scales_to_the_bit(kind: str) -> None:
    source, values = _source(kind, _matrix(6, 128))
    blocks = keep_blocks(source)
    assert blocks is not None
    np.testing.assert_allclose(_restored(blocks), values, rtol=1e-6, atol=1e-6)
    raw = source.data.reshape(6, 4, -1)
    nibbles = raw[..., -16:]
    theirs = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)
    ours = np.stack([blocks.codes & 15, blocks.codes >> 4], axis=-1).reshape(6, 4, 32)
    assert (ours == theirs).all()
    scales = np.ascontiguousarray(raw[..., :2]).view(np.float16)[..., 0]
    assert (blocks.scales == scales).all()


def test_only_q4_1_needs_zero_points_and_rests() -> None:
    symmetric, asymmetric = (keep_blocks(_source(k, _matrix(6, 128))[0]) for k in ("Q4_0", "Q4_1"))
    assert symmetric is not None
    assert symmetric.is_symmetric
    assert not symmetric.has_rests
    assert asymmetric is not None
    assert not asymmetric.is_symmetric
    assert (np.abs(asymmetric.rests) <= 0.5001 * asymmetric.scales).all()


def test_a_type_without_such_blocks_is_not_kept() -> None:
    assert keep_blocks(_source("Q8_0", _matrix(2, 64))[0]) is None


def test_a_block_of_equal_values_is_kept() -> None:
    source, values = _source("Q4_1", np.full((2, 64), 3.0, np.float32))
    blocks = keep_blocks(source)
    assert blocks is not None
    assert (_restored(blocks) == values).all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_a_layer_over_a_gguf_files_blocks_computes_their_values(tmp_path: Path, kind: str) -> None:
    tensors = ArrayTensors({"a.weight": _matrix(24, 128), "b.weight": _matrix(8, 128, 8)}, kind)
    layer = linear_layer(tmp_path, _EXACT, tensors, ["a", "b"])
    x = _matrix(5, 128, 9)[None]
    weight = np.concatenate([tensors.read("a.weight"), tensors.read("b.weight")])
    difference = layer(x) - x @ weight.T
    assert np.abs(difference).max() < 0.02 * np.std(x @ weight.T)


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_values_of_a_symmetric_grid_are_found_exactly(size: BlockSize) -> None:
    codes = np.random.default_rng(1).integers(-8, 8, (4, 2 * size)).astype(np.float32)
    codes[:, ::size] = -8
    values = codes * np.float32(0.25) * np.array([[1], [-1], [3], [1e-3]], np.float32)
    np.testing.assert_allclose(_restored(nearest_blocks(values, size)), values, rtol=1e-6)


@pytest.mark.parametrize(("size", "most"), [(32, 1 / 12), (64, 1 / 10), (128, 1 / 8)])
def test_any_values_are_met_within_a_share_of_their_spread(size: BlockSize, most: float) -> None:
    values = _matrix(64, 256)
    blocks = nearest_blocks(values, size)
    assert blocks.is_symmetric
    assert np.sqrt(np.square(_restored(blocks) - values).mean()) < most


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_a_block_of_zeros_stays_zeros(size: BlockSize) -> None:
    assert not _restored(nearest_blocks(np.zeros((2, 40), np.float32), size)).any()


@pytest.mark.parametrize("size", BLOCK_SIZES)
@pytest.mark.parametrize("rows", [1, 3])  # a row alone has a kernel of its own
@pytest.mark.parametrize("columns", [32, 33, 48, 100, 128, 200])
def test_a_layer_computes_what_its_blocks_stand_for_at_any_width(
    tmp_path: Path, columns: int, rows: int, size: BlockSize
) -> None:
    weight = _matrix(16, columns)
    tensors = ArrayTensors({"a.weight": weight})
    layer = linear_layer(tmp_path, partial(_EXACT, block_size=size), tensors, ["a"])
    x = _matrix(rows, columns, 2)[None]
    expected = x @ _restored(nearest_blocks(weight, size))[:, :columns].T
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_zero_points_lie_two_to_a_byte_and_rows_apart() -> None:
    zero_points = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
    assert packed_zero_points(zero_points).tolist() == [[0x21, 0x83], [0x54, 0x86]]


def test_biases_are_added(tmp_path: Path) -> None:
    arrays = {"a.weight": np.zeros((4, 32), np.float32), "a.bias": np.arange(4, dtype=np.float32)}
    layer = linear_layer(tmp_path, Int4Linears, ArrayTensors(arrays), ["a"])
    assert layer(np.ones((1, 2, 32), np.float32)).tolist() == [[[0, 1, 2, 3]] * 2]


def test_the_tied_table_is_stored_once_in_8_bits(tmp_path: Path) -> None:
    table = _matrix(320, 64)
    rows, logits = tied_layers(tmp_path, Int4Linears, table)(np.array([3, 319]))
    assert np.abs(rows - table[[3, 319]]).max() <= np.abs(table).max() / 63 / 2
    assert np.abs(logits - rows @ table.T).max() < 1
    assert (tmp_path / "tied.onnx.data").stat().st_size < 1.5 * 320 * 64


def test_own_blocks_are_told_by_their_type() -> None:
    matrices = {kind: ArrayTensors({"a.weight": _matrix(4, 64)}, kind) for kind in ("Q8_0", "Q4_1")}
    assert own_blocks(ArrayTensors({"a.weight": _matrix(4, 64)}), ["a"]) is None
    assert own_blocks(matrices["Q8_0"], ["a"]) is None
    assert own_blocks(matrices["Q4_1"], ["a"]) == "Q4_1"
    assert own_blocks(matrices["Q4_1"], []) is None


@pytest.fixture(scope="module")
def bundle(make_checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an int4 bundle of a random Llama with a tied head."""
    out = tmp_path_factory.mktemp("int4") / "out"
    export(make_checkpoint("llama", tie_word_embeddings=True), out, precision="int4")
    return out


def test_the_manifest_tells_the_accuracy_level_and_that_a_lone_row_differs(bundle: Path) -> None:
    manifest = open_bundle(bundle).manifest
    assert manifest.precision == "int4"
    assert manifest.int4_accuracy_level == 4
    assert manifest.int4_block_size == 32
    assert not manifest.single_row_exact


def test_the_accuracy_level_can_be_chosen(make_checkpoint: Any, tmp_path: Path) -> None:
    source = make_checkpoint("llama", tie_word_embeddings=True)
    export(source, tmp_path / "out", precision="int4", int4_accuracy_level=0)
    assert open_bundle(tmp_path / "out").manifest.int4_accuracy_level == 0
    assert _attributes(tmp_path / "out", "accuracy_level") == {0}


@pytest.mark.parametrize("precision", ["int4", "int8+int4"])
@pytest.mark.parametrize("size", [64, 128])
def test_the_block_size_can_be_chosen(
    size: BlockSize, precision: Any, make_checkpoint: Any, bundle: Path, tmp_path: Path
) -> None:
    source = make_checkpoint("llama", tie_word_embeddings=True)
    options: Any = {"int4_accuracy_level": 0, "int4_block_size": size}
    export(source, tmp_path / "out", precision=precision, **options)
    assert open_bundle(tmp_path / "out").manifest.int4_block_size == size
    assert _attributes(tmp_path / "out", "block_size") == {size}
    assert _attributes(bundle, "block_size") == {32}


def test_a_bundle_without_4_bit_layers_has_no_block_size(tiny_bundle: Path) -> None:
    assert open_bundle(tiny_bundle).manifest.int4_block_size is None


def _attributes(bundle: Path, name: str) -> set[int]:
    graph = ir.load(bundle / GRAPH_NAME).graph
    return {node.attributes[name].as_int() for node in graph if node.op_type == "MatMulNBits"}


def test_layers_take_half_a_byte_a_weight(bundle: Path, tiny_bundle: Path) -> None:
    int4, int8 = ((path / WEIGHTS_NAME).stat().st_size for path in (bundle, tiny_bundle))
    assert int4 < 0.95 * int8


@pytest.mark.parametrize(("level", "size"), [(4, 32), (0, 64), (0, 128)])
def test_the_runtime_gives_a_row_the_same_bits_alone_and_in_a_batch(
    level: Any, size: BlockSize, make_checkpoint: Any, tmp_path: Path
) -> None:
    source = make_checkpoint("llama", hidden_size=128)
    options: Any = {"int4_accuracy_level": level, "int4_block_size": size}
    export(source, tmp_path / "out", precision="int4", **options)
    model = Model(open_bundle(tmp_path / "out"), rows=5, length=64, threads=1)
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, 256, length) for length in (7, 2, 30, 16, 3)]
    for row, prompt in enumerate(prompts):
        model.prefill(row, prompt, 0, np.array([len(prompt) - 1]))
    tokens, past = np.arange(5), np.array([len(p) for p in prompts], np.int32)
    together = model.decode(tokens, past).logits.copy()
    for count in range(1, 5):
        some = model.decode(tokens[:count], past[:count]).logits
        assert some.tobytes() == together[:count].tobytes()
