"""Every architecture and option, exported in float32, computes what transformers computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from families import FAMILIES, LONGROPE, OPTIONS
from parity import has_the_same_bits_in_chunks, relative_error, worst_difference

from ortolan_export.native import export
from ortolan_runtime.bundle import GRAPH_NAME

_TOLERANCE = 1e-4
_CASES = {**FAMILIES, **OPTIONS}


@pytest.mark.parametrize("case", _CASES)
def test_the_float32_graph_equals_transformers(
    case: str, make_checkpoint: Any, reference_of: Any, tmp_path: Path
) -> None:
    family, config = _CASES[case]
    checkpoint = make_checkpoint(family, **config)
    export(checkpoint, tmp_path / "out", precision="fp32")
    assert worst_difference(tmp_path / "out", reference_of(checkpoint)) < _TOLERANCE


@pytest.mark.parametrize("case", FAMILIES)
def test_the_int8_graph_is_near_transformers_and_exact_in_any_batch_and_chunks(
    case: str, make_checkpoint: Any, reference_of: Any, tmp_path: Path
) -> None:
    family, config = FAMILIES[case]
    checkpoint = make_checkpoint(family, **config)
    manifest = export(checkpoint, tmp_path / "out", precision="int8")  # which compares batches
    assert manifest.single_row_exact
    reference = reference_of(checkpoint)
    # Rows of 64 random weights do not quantise well, and a router may choose another expert.
    assert relative_error(tmp_path / "out", reference) < 0.25
    assert has_the_same_bits_in_chunks(tmp_path / "out", reference)


def test_longrope_uses_the_short_factors_within_the_original_length(
    make_checkpoint: Any, reference_of: Any, tmp_path: Path
) -> None:
    scaling = {**LONGROPE, "original_max_position_embeddings": 64}
    checkpoint = make_checkpoint("llama", rope_scaling=scaling)
    export(checkpoint, tmp_path / "out", precision="fp32", context_length=64)
    assert worst_difference(tmp_path / "out", reference_of(checkpoint)) < _TOLERANCE


@pytest.mark.parametrize("precision", ["fp32", "int4"])
@pytest.mark.parametrize("case", ["mixtral", "gpt_oss"])
def test_a_mixture_keeps_a_tokens_bits_whoever_else_its_experts_get(
    case: str, precision: Any, make_checkpoint: Any, reference_of: Any, tmp_path: Path
) -> None:
    family, config = FAMILIES[case]
    checkpoint = make_checkpoint(family, **config)
    export(checkpoint, tmp_path / "out", precision=precision)
    assert has_the_same_bits_in_chunks(tmp_path / "out", reference_of(checkpoint))


def test_experts_are_kept_in_the_bits_of_the_precision(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    family, config = FAMILIES["mixtral"]
    checkpoint = make_checkpoint(family, **config)
    sizes = {"fp32": 32, "int8": 8, "int4": 4}
    for precision in sizes:
        export(checkpoint, tmp_path / precision, precision=precision)
    weights = {name: _bytes_of(tmp_path / name, "experts.gate_up.weight") for name in sizes}
    assert weights["fp32"] == 2 * 4 * 192 * 64 * 4  # layers, experts, rows, columns, bytes
    assert [weights["fp32"] * bits // 32 for bits in sizes.values()] == list(weights.values())


@pytest.mark.parametrize(
    ("inner", "asked", "got"), [(128, 64, 64), (128, 128, 128), (64, 128, 64), (96, 64, 32)]
)
def test_experts_have_the_largest_blocks_that_divide_their_rows(
    inner: int, asked: Any, got: int, make_checkpoint: Any, reference_of: Any, tmp_path: Path
) -> None:
    family, config = FAMILIES["mixtral"]
    checkpoint = make_checkpoint(family, **config, hidden_size=128, intermediate_size=inner)
    options: Any = {"int4_accuracy_level": 0, "int4_block_size": asked}
    export(checkpoint, tmp_path / "out", precision="int4", **options)
    graph = ir.load(tmp_path / "out" / GRAPH_NAME).graph
    sizes = {n.attributes["block_size"].as_int() for n in graph if n.op_type == "QMoE"}
    assert sizes == {got}
    assert relative_error(tmp_path / "out", reference_of(checkpoint)) < 0.7
    assert has_the_same_bits_in_chunks(tmp_path / "out", reference_of(checkpoint))


def _bytes_of(bundle: Path, kind: str) -> int:
    graph = ir.load(bundle / GRAPH_NAME).graph
    return sum(
        value.const_value.nbytes
        for name, value in graph.initializers.items()
        if name.endswith(kind) and value.const_value is not None
    )
