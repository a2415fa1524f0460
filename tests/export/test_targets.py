"""Bundles for CUDA and TensorRT compute what transformers computes, by operators that are there.

Not run on hardware: the graphs run on the CPU provider here, which casts fp16 where it has no
kernel of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from families import FAMILIES, OPTIONS
from parity import relative_error, worst_difference
from safetensors.numpy import load_file, save_file

from ortolan_export.errors import ExportError, UnsupportedModel
from ortolan_export.native import export
from ortolan_export.targets import Engines
from ortolan_runtime.bundle import GRAPH_NAME, ROWS_GRAPH_NAME, open_bundle

_TOLERANCE = 1e-4
_CASES = {**FAMILIES, **OPTIONS}
_MIXTURES = [name for name in _CASES if name.split()[0] in ("mixtral", "qwen3_moe", "gpt_oss")]
_DENSE = [name for name in _CASES if name not in _MIXTURES]
# Soft-caps, windows and norms of Q and K; learned positions and layer norms.
_FEW = ("gemma2", "gpt2")

# Operators with a CUDA kernel for float16 (Cast, Gather and comparisons: for what they get here).
# Source: docs/OperatorKernels.md of ONNX Runtime, commit 001d12d, CUDA execution provider.
_CUDA_KERNELS = {
    "": {
        *("Add", "And", "Attention", "Cast", "Concat", "Div", "Gather", "Gelu", "Greater"),
        *("LayerNormalization", "LessOrEqual", "LogSoftmax", "MatMul", "Mul", "RMSNormalization"),
        *("ReduceMax", "ReduceSum", "Relu", "Reshape", "RotaryEmbedding", "Sigmoid"),
        *("SimplifiedLayerNormalization", "Slice", "Softmax", "Split", "Sub", "Tanh"),
        *("TensorScatter", "Transpose", "Unsqueeze", "Where"),
    },
    "com.microsoft": {
        *("FusedMatMul", "GroupQueryAttention", "MatMulNBits", "MoE", "QuickGelu"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    },
}


def _every(names: list[str], few: tuple[str, ...]) -> list[Any]:
    """Return parameters of which all but a few are run with the exports of realistic size."""
    return [n if n in few else pytest.param(n, marks=pytest.mark.export) for n in names]


def _checkpoint(make_checkpoint: Any, case: str) -> Path:
    family, config = _CASES[case]
    return Path(make_checkpoint(family, **config))


def _graph(bundle: Path) -> ir.Model:
    return ir.load(bundle / GRAPH_NAME)


@pytest.mark.parametrize("case", _every(_DENSE, _FEW))
def test_the_graph_for_tensorrt_equals_transformers(
    case: str, make_checkpoint: Any, reference_of: Any, tmp_path: Path
) -> None:
    checkpoint = _checkpoint(make_checkpoint, case)
    export(checkpoint, tmp_path / "out", target="tensorrt", precision="fp32")
    assert worst_difference(tmp_path / "out", reference_of(checkpoint)) < _TOLERANCE
    model = _graph(tmp_path / "out")
    assert {node.domain for node in model.graph} == {""}
    assert model.opset_imports == {"": 24}


@pytest.mark.parametrize(
    ("target", "case"),
    [
        pytest.param(target, case, marks=[] if case == "llama" else pytest.mark.export)
        for target in ("cuda", "tensorrt")
        for case in FAMILIES
        if target == "cuda" or case not in _MIXTURES
    ],
)
def test_the_graph_in_fp16_is_near_transformers(
    target: Any, case: str, make_checkpoint: Any, reference_of: Any, tmp_path: Path
) -> None:
    checkpoint = _checkpoint(make_checkpoint, case)
    export(checkpoint, tmp_path / "out", target=target)
    assert relative_error(tmp_path / "out", reference_of(checkpoint)) < 0.01


@pytest.mark.parametrize("route", ["cuda fp16", "cuda int4", "tensorrt fp16"])
@pytest.mark.parametrize("case", _every(_DENSE, ("gpt2",)))
def test_every_operator_for_a_gpu_has_a_kernel_for_cuda(
    case: str, route: str, make_checkpoint: Any, tmp_path: Path
) -> None:
    checkpoint = _checkpoint(make_checkpoint, case)
    target, precision = route.split()
    export(checkpoint, tmp_path / "out", target=target, precision=precision)  # type: ignore[arg-type]
    for name in (GRAPH_NAME, ROWS_GRAPH_NAME):
        for node in ir.load(tmp_path / "out" / name).graph:
            assert node.op_type in _CUDA_KERNELS[node.domain]


def test_the_cache_for_cuda_is_in_fp16_and_scores_are_in_float32(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    manifest = export(_checkpoint(make_checkpoint, "llama"), tmp_path / "out", target="cuda")
    assert (manifest.precision, manifest.kv_dtype) == ("fp16", "float16")
    types = {value.name: value.dtype for value in _values(tmp_path / "out")}
    assert types["past.0.key"] == types["present.1.value"] == ir.DataType.FLOAT16
    assert types["logits"] == types["logsumexp"] == ir.DataType.FLOAT
    weights = _graph(tmp_path / "out").graph.initializers.values()
    kinds = {w.const_value.dtype for w in weights if w.const_value is not None}
    assert kinds == {ir.DataType.FLOAT16, ir.DataType.INT64}


def _values(bundle: Path) -> list[ir.Value]:
    graph = _graph(bundle).graph
    return [*graph.inputs, *graph.outputs]


def test_int4_for_cuda_loses_no_more_than_on_the_cpu(
    make_checkpoint: Any, reference_of: Any, tmp_path: Path
) -> None:
    checkpoint = _checkpoint(make_checkpoint, "llama")
    export(checkpoint, tmp_path / "cpu", precision="int4", int4_accuracy_level=0)
    manifest = export(checkpoint, tmp_path / "cuda", precision="int4", target="cuda")
    assert (manifest.int4_accuracy_level, manifest.kv_dtype) == (0, "float16")
    reference = reference_of(checkpoint)
    errors = [relative_error(tmp_path / name, reference) for name in ("cpu", "cuda")]
    assert errors[1] < 1.02 * errors[0]


def test_int4_for_cuda_takes_larger_blocks(
    make_checkpoint: Any, reference_of: Any, tmp_path: Path
) -> None:
    checkpoint = _checkpoint(make_checkpoint, "llama")
    options: Any = {"precision": "int4", "int4_block_size": 64}
    export(checkpoint, tmp_path / "cpu", int4_accuracy_level=0, **options)
    assert export(checkpoint, tmp_path / "cuda", target="cuda", **options).int4_block_size == 64
    reference = reference_of(checkpoint)
    errors = [relative_error(tmp_path / name, reference) for name in ("cpu", "cuda")]
    assert errors[1] < 1.02 * errors[0]


def test_the_caches_for_tensorrt_are_static_and_shapes_are_never_computed(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    checkpoint = _checkpoint(make_checkpoint, "llama")
    manifest = export(checkpoint, tmp_path / "out", target="tensorrt", context_length=96)
    assert (manifest.kv_layout, manifest.cache_length(10)) == ("static", 96)
    shapes = {value.name: value.shape for value in _values(tmp_path / "out")}
    for name in ("past.1.key", "present.1.key"):
        shape = shapes[name]
        assert shape is not None
        assert list(shape)[1:] == [2, 96, 16]
    operators = {node.op_type for node in _graph(tmp_path / "out").graph}
    assert {"Attention", "RMSNormalization", "RotaryEmbedding", "TensorScatter"} <= operators
    assert not operators & {"Shape", "Range", "Size"}


def test_a_bundle_for_tensorrt_has_profiles_for_decoding_and_for_prompts(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    engines = Engines(rows=4, chunk=64)
    checkpoint = _checkpoint(make_checkpoint, "llama")
    export(checkpoint, tmp_path / "out", target="tensorrt", engines=engines)
    plan = open_bundle(tmp_path / "out").manifest.engines
    assert plan is not None
    assert (plan.fp16, plan.engine_cache, plan.timing_cache) == (True, True, True)
    decode, prefill = plan.profiles
    assert (decode.rows, decode.tokens, decode.positions) == ((1, 4, 4), (1, 1, 1), (1, 4, 4))
    assert (prefill.rows, prefill.tokens) == ((1, 1, 1), (1, 64, 64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"target": "cuda", "precision": "int8"},
            "--precision for cuda must be one of fp16, int4, got int8: "
            "its integer products have no kernel there",
        ),
        ({"target": "cuda", "precision": "fp32"}, "got fp32: its attention has no kernel there"),
        (
            {"target": "tensorrt", "precision": "int4"},
            "must be one of fp16, fp32, got int4: its products are no standard operators",
        ),
        ({"precision": "fp16"}, "got fp16: a CPU computes it in fp32, and more slowly"),
        (
            {"target": "cuda", "precision": "int4", "int4_accuracy_level": 4},
            "--int4-accuracy-level for cuda must be 0, got 4: activations stay in fp16 there",
        ),
        (
            {"int4_accuracy_level": 4},
            "--int4-accuracy-level 4 is for --precision int4 or int8+int4, got int8: leave it out",
        ),
        (
            {"precision": "fp32", "int4_block_size": 32},
            "--int4-block-size 32 is for --precision int4 or int8+int4, got fp32: leave it out",
        ),
        (
            {"precision": "int8+int4", "int4_block_size": 64},
            "--int4-block-size must be 32 at --int4-accuracy-level 4, got 64: the last of an odd "
            "number of rows would round otherwise than among others; add --int4-accuracy-level 0, "
            "or leave it out",
        ),
        (
            {"target": "tensorrt", "int4_block_size": 64},
            "--int4-block-size 64 is for --precision int4 or int8+int4, got fp16: leave it out",
        ),
        (
            {"engines": Engines()},
            "--engine-rows and --engine-chunk are for tensorrt, got --for cpu",
        ),
    ],
)
def test_what_a_target_does_not_take_is_refused_in_one_line(
    options: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError) as caught:
        export(tmp_path / "nothing is read", tmp_path / "out", **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "options", "way_out"),
    [
        ("mixtral", {"target": "tensorrt"}, "export it --for cuda"),
        ("gpt_oss", {"target": "tensorrt"}, "export it --for cuda"),
        ("mixtral", {"target": "cuda", "precision": "int4"}, "export it in fp16"),
    ],
)
def test_a_mixture_of_experts_is_refused_by_name_where_it_has_no_operator(
    case: str, options: Any, way_out: str, make_checkpoint: Any, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=f"architecture '{case}' is not supported") as caught:
        export(_checkpoint(make_checkpoint, case), tmp_path / "out", **options)
    assert way_out in str(caught.value)


@pytest.mark.parametrize(("field", "value"), [("rows", 0), ("chunk", 16)])
def test_engines_of_no_use_are_refused(field: str, value: int) -> None:
    with pytest.raises(ExportError, match=f"--engine-{field} must be >= "):
        Engines(**{field: value})


def test_a_weight_that_fp16_cannot_hold_is_named(make_checkpoint: Any, tmp_path: Path) -> None:
    source = _checkpoint(make_checkpoint, "llama")
    folder = tmp_path / "model"
    folder.mkdir()
    tensors = {k: v for file in source.glob("*.safetensors") for k, v in load_file(file).items()}
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.float32(1e5)
    save_file(tensors, folder / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    named = "tensor model.layers.1.mlp.up_proj.weight must be within ±65504 in fp16, got 1e.05"
    with pytest.raises(UnsupportedModel, match=named):
        export(folder, tmp_path / "out", target="cuda")
    assert not (tmp_path / "out").exists()
