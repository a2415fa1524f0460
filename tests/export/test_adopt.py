"""Exports of others become bundles as they are, and compute what the model does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from parity import Reference, worst_difference
from refusals import resave

from foreign_graphs import write_config, write_export
from ortolan_export.adopt import adopt
from ortolan_export.config import Config
from ortolan_export.foreign import load_graph, may_have_windows, read_graph
from ortolan_export.probing import Probe
from ortolan_runtime.bundle import open_bundle
from ortolan_server.cli import main

WriteExport = Callable[..., Path]


def digests(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize(
    ("options", "padding"),
    [
        ({}, "right"),
        ({"half": True}, "right"),
        ({"positions": "mask"}, "right"),
        ({"window": 8}, "left"),
        ({"window": 8, "positions": "mask"}, "left"),
        ({"positions": "places"}, "none"),
        ({"has_keep": True}, "right"),
    ],
)
def test_padding_is_what_the_graph_was_seen_to_bear(
    options: dict[str, Any], padding: str, exported: WriteExport, tmp_path: Path
) -> None:
    manifest = adopt(exported(**options), tmp_path / "bundle")
    assert manifest.kv_layout == "concat"
    assert manifest.masked_graph is not None
    assert manifest.masked_graph.padding == padding


@pytest.mark.parametrize("has_keep", [False, True])
def test_a_graph_that_writes_in_place_is_let_do_so(
    has_keep: bool, exported: WriteExport, tmp_path: Path
) -> None:
    source = exported(is_fused=True, has_keep=has_keep)
    assert adopt(source, tmp_path / "bundle").kv_layout == "shared"


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "input"},
        {"positions": "mask"},
        {"positions": "places"},
        {"has_keep": True},
        {"has_switch": True, "graph": "decoder_model_merged.onnx"},
        {"is_fused": True},
        {"is_fused": True, "has_keep": True},
    ],
)
def test_an_adopted_graph_computes_what_the_model_does(
    options: dict[str, Any],
    exported: WriteExport,
    make_checkpoint: Any,
    reference_of: Callable[[Path], Reference],
    tmp_path: Path,
) -> None:
    adopt(exported(**options), tmp_path / "bundle")
    assert worst_difference(tmp_path / "bundle", reference_of(make_checkpoint("llama"))) < 1e-4


def test_a_window_holds_past_its_width(
    exported: WriteExport,
    make_checkpoint: Any,
    reference_of: Callable[[Path], Reference],
    tmp_path: Path,
) -> None:
    mistral = make_checkpoint("mistral", sliding_window=8)
    write_export(tmp_path / "export", mistral, window=8)
    adopt(tmp_path / "export", tmp_path / "bundle")
    assert worst_difference(tmp_path / "bundle", reference_of(mistral)) < 1e-4


def test_a_cache_in_float16_costs_some_digits_and_no_more(
    exported: WriteExport,
    make_checkpoint: Any,
    reference_of: Callable[[Path], Reference],
    tmp_path: Path,
) -> None:
    manifest = adopt(exported(half=True), tmp_path / "bundle")
    assert manifest.kv_dtype == "float16"
    assert worst_difference(tmp_path / "bundle", reference_of(make_checkpoint("llama"))) < 0.03


def test_the_manifest_tells_what_graph_and_texts_say(exported: WriteExport, tmp_path: Path) -> None:
    manifest = adopt(exported(), tmp_path / "bundle", name="mine", context_length=64)
    assert (manifest.name, manifest.architecture, manifest.precision) == ("mine", "llama", "fp32")
    assert (manifest.layers, manifest.kv_heads, manifest.head_size) == (2, 2, 16)
    assert (manifest.context_length, manifest.vocab_size) == (64, 320)
    assert (manifest.bos_token_id, manifest.eos_token_ids) == (257, (256,))
    assert len(manifest.golden) == 3
    assert open_bundle(tmp_path / "bundle").manifest == manifest


@pytest.mark.parametrize("block_size", [16, 64])
def test_the_manifest_tells_how_4_bit_layers_are_kept(
    block_size: int, exported: WriteExport, tmp_path: Path
) -> None:
    manifest = adopt(exported(block_size=block_size), tmp_path / "bundle")
    assert manifest.precision == "int4"
    assert (manifest.int4_accuracy_level, manifest.int4_block_size) == (0, block_size)


def test_layers_of_the_same_operator_in_8_bits_are_no_4_bit_layers(exported: WriteExport) -> None:
    folder = exported(block_size=32)
    model = load_graph(folder / "model.onnx")
    for node in model.graph:
        if node.op_type == "MatMulNBits":
            node.attributes["bits"] = ir.AttrInt64("bits", 8)
    config = json.loads((folder / "config.json").read_text())
    found = read_graph(model, Config(config, origin="config.json"))
    assert found.precision == "int8"
    assert (found.int4_accuracy_level, found.int4_block_size) == (None, None)


def test_a_bundle_is_plain_files_and_the_export_stays_as_it_was(
    exported: WriteExport, tmp_path: Path
) -> None:
    source = exported()
    (tmp_path / "blob").write_bytes((source / "model.onnx_data").read_bytes())
    (source / "model.onnx_data").unlink()
    (source / "model.onnx_data").symlink_to(tmp_path / "blob")  # as caches of downloads do
    before = digests(source)
    adopt(source, tmp_path / "bundle")
    assert digests(source) == before
    files = {file.name: file for file in (tmp_path / "bundle").iterdir()}
    assert set(files) == {"bundle.json", "model.onnx", "model.onnx.data", "tokenizer.json"}
    assert not any(file.is_symlink() for file in files.values())
    graph = ir.load(files["model.onnx"])
    external = [
        value.const_value
        for value in graph.graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor)
    ]
    assert {str(tensor.location) for tensor in external} == {"model.onnx.data"}
    assert len(external) > 10


def test_weights_inside_the_graph_move_to_the_data_file(
    exported: WriteExport, tmp_path: Path
) -> None:
    source = exported()

    def inline(model: ir.Model) -> None:
        for value in model.graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = ir.tensor(value.const_value.numpy().copy(), name=value.name)

    resave(source, inline)
    (source / "model.onnx_data").unlink()
    adopt(source, tmp_path / "bundle")
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "bundle").iterdir()}
    assert sizes["model.onnx.data"] > 10 * sizes["model.onnx"]


def test_a_graph_in_the_folder_onnx_is_found_and_may_be_chosen(
    exported: WriteExport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = exported(graph="onnx/model.onnx")
    exported(graph="onnx/model_q4.onnx", positions="mask")
    for graph, position_ids in ((None, "position_ids"), ("model_q4.onnx", None)):
        masked = adopt(source, tmp_path / "bundle", graph=graph).masked_graph
        assert masked is not None
        assert masked.position_ids == position_ids
    assert main(["adopt", str(source), str(tmp_path / "bundle"), "--graph", "q8"]) == 1
    assert "must be one of onnx/model.onnx, onnx/model_q4.onnx, got 'q8'" in capsys.readouterr().err


def test_a_config_of_genai_is_enough(exported: WriteExport, tmp_path: Path) -> None:
    source = exported()
    (source / "config.json").unlink()
    decoder = {"num_key_value_heads": 2, "head_size": 16, "num_hidden_layers": 2}
    model = {"type": "llama", "vocab_size": 320, "context_length": 128, "eos_token_id": [256, 7]}
    genai = {"model": {**model, "decoder": decoder}}
    (source / "genai_config.json").write_text(json.dumps(genai))
    manifest = adopt(source, tmp_path / "bundle")
    assert (manifest.context_length, manifest.eos_token_ids) == (128, (7, 256))


def test_a_refusal_leaves_the_bundle_that_was_there(
    exported: WriteExport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    adopt(exported(), out)
    before = digests(out)
    assert main(["adopt", str(exported(is_quantised=True)), str(out)]) == 1
    assert digests(out) == before
    assert sorted(tmp_path.iterdir()) == [out, tmp_path / "export"]


def test_a_graph_that_writes_behind_each_row_bears_no_padding_when_it_returns_its_cache(
    exported: WriteExport, tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    manifest = adopt(exported(is_fused=True), out)
    # The first step of a padded row is right; what it wrote is not where the next one looks.
    probe = Probe(out, manifest)
    concat = probe.settle(may_write_in_place=False, may_have_windows=False, why_rows_meet=None)
    assert concat.masked_graph is not None
    assert (concat.kv_layout, concat.masked_graph.padding) == ("concat", "none")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"sliding_window": None}, False),
        ({"sliding_window": 4096}, True),
        ({"sliding_window": 4096, "use_sliding_window": False}, False),
        ({"window_size": 256}, True),
        ({"layer_types": ["full_attention", "full_attention"]}, False),
        ({"layer_types": ["full_attention", "chunked_attention"]}, True),
    ],
)
def test_windows_are_known_by_the_config(fields: dict[str, Any], expected: bool) -> None:
    assert may_have_windows(Config(fields)) == expected


def test_a_window_too_wide_to_be_tried_is_taken_for_one(
    exported: WriteExport, tmp_path: Path
) -> None:
    # No window in the graph, but one in the config; a context of 1 GiB of cache cannot be tried.
    source = exported()
    write_config(source, sliding_window=1 << 20, max_position_embeddings=1 << 21)
    masked = adopt(source, tmp_path / "bundle").masked_graph
    assert masked is not None
    assert masked.padding == "left"
