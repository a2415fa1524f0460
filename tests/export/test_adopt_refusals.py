"""What cannot be adopted is refused in one line that says why, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from refusals import refusal, resave

from foreign_graphs import write_config
from ortolan_export.adopt import adopt

WriteExport = Callable[..., Path]


def _refusal(source: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    return refusal(source, source.parent / "bundle", capsys, *options, command="adopt")


def test_several_graphs_without_a_usual_name_must_be_chosen_from(
    exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    source = exported(graph="model_q4.onnx")
    exported(graph="model_fp16.onnx")
    assert "choose by --graph one of model_fp16.onnx, model_q4.onnx" in _refusal(source, capsys)


def test_one_scale_for_all_rows_is_refused_with_the_reason_and_the_way_out(
    exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    line = _refusal(exported(is_quantised=True), capsys)
    assert "a row's logits must not depend on other rows" in line
    assert "DynamicQuantizeLinear gives the activations of all rows one scale" in line
    assert "--graph" in line
    assert "ortolan export" in line


def test_4_bit_layers_whose_rows_feel_how_many_there_are_are_refused(
    exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    source = exported(block_size=64)

    def quantise_activations(model: ir.Model) -> None:
        for node in model.graph:
            if node.op_type == "MatMulNBits":
                node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 4)

    resave(source, quantise_activations)
    line = _refusal(source, capsys)
    assert "at accuracy_level 4 must have blocks of at most 32, got 64" in line
    assert "--graph" in line


def test_an_encoder_decoder_is_refused(
    exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    source = exported()
    write_config(source, is_encoder_decoder=True, model_type="t5")
    assert "an encoder-decoder is not supported" in _refusal(source, capsys)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("past_conv.0", "a hybrid of attention and convolutions"),
        ("past_ssm.0", "a hybrid of attention and state spaces"),
        ("encoder_hidden_states", "an encoder-decoder"),
        ("inputs_embeds", "a model that takes embeddings"),
        ("token_type_ids", "'token_type_ids' is not known"),
    ],
)
def test_an_input_of_another_kind_of_model_is_refused_by_name(
    name: str, said: str, exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    source = exported()

    def add(model: ir.Model) -> None:
        kind = ir.TensorType(ir.DataType.FLOAT)
        model.graph.inputs.append(ir.Value(name=name, type=kind, shape=ir.Shape(["batch", 4])))

    resave(source, add)
    line = _refusal(source, capsys)
    assert repr(name) in line
    assert said in line


def test_a_graph_without_a_cache_is_refused(
    exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    source = exported()

    def forget(model: ir.Model) -> None:
        kept = [value for value in model.graph.inputs if "past" not in str(value.name)]
        model.graph.inputs[:] = kept

    resave(source, forget)
    assert "no KV cache among its inputs" in _refusal(source, capsys)


def test_data_that_is_missing_is_named(
    exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    source = exported()
    (source / "model.onnx_data").unlink()
    assert "model.onnx_data is missing" in _refusal(source, capsys)


def test_data_that_ends_too_early_is_named(
    exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    data = exported() / "model.onnx_data"
    data.write_bytes(data.read_bytes()[:100_000])
    assert "model.onnx_data ends too early" in _refusal(data.parent, capsys)


def test_data_outside_the_folder_is_refused(
    exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    source = exported()

    def lead_out(model: ir.Model) -> None:
        for value in model.graph.initializers.values():
            old = value.const_value
            if isinstance(old, ir.ExternalTensor):
                value.const_value = ir.ExternalTensor(
                    "../secret", old.offset, old.length, old.dtype, shape=old.shape, name=old.name
                )

    resave(source, lead_out)
    assert "must lie beside its graph, got '../secret'" in _refusal(source, capsys)


def test_a_context_that_nothing_names_must_be_given(
    exported: WriteExport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = exported()
    write_config(source, max_position_embeddings=None)
    assert "--context-length" in _refusal(source, capsys)
    assert adopt(source, tmp_path / "bundle", context_length=48).context_length == 48


def test_a_context_longer_than_the_models_is_refused(
    exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    line = _refusal(exported(), capsys, "--context-length", "4096")
    assert "--context-length must be within 16..128, got 4096" in line


def test_a_context_too_short_for_the_golden_prompts_is_refused(
    exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    line = _refusal(exported(), capsys, "--context-length", "15")
    assert "--context-length must be within 16..128, got 15" in line


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layer_types": 3}, "layer_types must be a list, got 3"),
        ({"model_type": ["llama"]}, "model_type must be a string"),
        ({"eos_token_id": "256"}, "eos_token_id must be a token's id or a list of ids"),
    ],
)
def test_a_wrong_field_is_named(
    fields: dict[str, Any], said: str, exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    source = exported()
    write_config(source, **fields)
    assert said in _refusal(source, capsys)


def test_a_graph_that_onnxruntime_cannot_run_is_refused(
    exported: WriteExport, capsys: pytest.CaptureFixture[str]
) -> None:
    source = exported()

    def rename_an_operator(model: ir.Model) -> None:
        next(node for node in model.graph if node.op_type == "MatMul").op_type = "MatNul"

    resave(source, rename_an_operator)
    line = _refusal(source, capsys)
    assert "cannot run the graph" in line
    assert "MatNul" in line


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda folder: (folder / "model.onnx").write_bytes(b"\x00no"), "is no ONNX graph"),
        (lambda folder: (folder / "model.onnx").unlink(), "holds no *.onnx"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    ],
)
def test_what_is_missing_or_damaged_is_named(
    prepare: Callable[[Path], Any],
    said: str,
    exported: WriteExport,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = exported()
    prepare(source)
    assert said in _refusal(source, capsys)
