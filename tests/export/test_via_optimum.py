"""What optimum exports becomes a bundle that computes what transformers does, or is refused.

optimum needs an older transformers than the tests, so most of this runs in an environment of its
own: ``pip install -e '.[optimum,export,cpu]' pytest hypothesis``, then ``pytest -m slow`` on this
file.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from parity import Reference, worst_difference

from ortolan_export import via_optimum
from ortolan_export.adopt import adopt
from ortolan_export.errors import UnsupportedModel
from ortolan_runtime.errors import OrtolanError
from ortolan_server.cli import main

_HAS_OPTIMUM = util.find_spec("optimum") is not None
needs_optimum = pytest.mark.skipif(
    not _HAS_OPTIMUM, reason="needs the extra `optimum`, in an environment of its own"
)

# Family, fields of its tiny config, and the padding that its graph bears.
_FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "llama": ({}, "right"),
    "mistral": ({"sliding_window": 8}, "left"),
    "qwen2": ({}, "right"),
    "gpt2": ({}, "right"),
    "gptj": ({"rotary_dim": 8}, "right"),
    "gpt_neo": (
        {
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
        },
        "left",
    ),
    "opt": ({"ffn_dim": 96}, "right"),
    "bloom": ({}, "right"),
    "mpt": ({}, "left"),
    "nemotron": ({}, "none"),
    "gemma": ({}, "none"),
}


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Return the line that ``ortolan export --via optimum`` ends with."""
    assert main(["export", *argv, "--via", "optimum"]) == 1
    return capsys.readouterr().err


@pytest.mark.slow
@needs_optimum
@pytest.mark.parametrize("family", _FAMILIES)
def test_what_optimum_exports_computes_what_transformers_does(
    family: str,
    make_checkpoint: Any,
    reference_of: Callable[[Path], Reference],
    tmp_path: Path,
) -> None:
    config, padding = _FAMILIES[family]
    checkpoint = make_checkpoint(family, **config)
    out = tmp_path / "bundle"
    manifest = via_optimum.export_via_optimum(checkpoint, out, context_length=128)
    assert manifest.masked_graph is not None
    assert (manifest.precision, manifest.masked_graph.padding) == ("fp32", padding)
    assert sorted(tmp_path.iterdir()) == [out]
    assert worst_difference(out, reference_of(checkpoint)) < 1e-4


@pytest.mark.slow
@needs_optimum
@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_a_merged_decoder_of_older_versions_is_adopted(
    family: str,
    make_checkpoint: Any,
    reference_of: Callable[[Path], Reference],
    tmp_path: Path,
) -> None:
    checkpoint, source = make_checkpoint(family), tmp_path / "merged"
    source.mkdir()
    write_merged_decoder(checkpoint, source)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(checkpoint / name, source / name)
    manifest = adopt(source, tmp_path / "bundle", context_length=128)
    assert manifest.masked_graph is not None
    assert manifest.masked_graph.use_cache_branch == "use_cache_branch"
    assert worst_difference(tmp_path / "bundle", reference_of(checkpoint)) < 1e-4


def write_merged_decoder(checkpoint: Path, folder: Path) -> None:
    """Write a decoder without past and one with it as the branches of one graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from optimum.exporters.onnx import export
        from optimum.exporters.tasks import TasksManager
        from optimum.onnx import merge_decoders
        from transformers import AutoModelForCausalLM

        branches = {folder / "first.onnx": False, folder / "with_past.onnx": True}
        for path, has_past in branches.items():
            model = AutoModelForCausalLM.from_pretrained(checkpoint)
            make_config = TasksManager.get_exporter_config_constructor(
                "onnx", model=model, task="text-generation", library_name="transformers"
            )
            config = make_config(
                model.config, task="text-generation", use_past=True, use_past_in_inputs=has_past
            )
            export(model, config, path, opset=17)
        merge_decoders(*branches, save_path=folder / "decoder_model_merged.onnx")
        for path in branches:
            path.unlink()


@pytest.mark.slow
@needs_optimum
def test_a_graph_that_optimum_gets_wrong_is_refused(
    make_checkpoint: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gemma = make_checkpoint("gemma2", attn_logit_softcapping=5.0)
    line = error_of(capsys, str(gemma), str(tmp_path / "bundle"))
    assert "differs from transformers by" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@needs_optimum
def test_what_optimum_does_not_know_ends_in_one_line(
    make_checkpoint: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_of(capsys, str(make_checkpoint("persimmon")), str(tmp_path / "bundle"))
    assert line.startswith("ortolan: error: optimum cannot export tiny-persimmon: ")
    assert line.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(_HAS_OPTIMUM, reason="optimum is here")
def test_without_optimum_the_error_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_of(capsys, str(tmp_path), str(tmp_path / "bundle"))
    assert "--via optimum needs optimum.exporters.onnx: pip install 'ortolan[optimum," in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--precision", "int8"], "--precision must be fp32 with --via optimum, got int8"),
        (["--for", "cuda"], "--for must be cpu with --via optimum, got cuda"),
        (["--int4-accuracy-level", "0"], "--int4-accuracy-level must be left out"),
        (["--int4-block-size", "32"], "--int4-block-size must be left out with --via optimum, got"),
        (["--engine-rows", "4"], "--engine-rows must be left out"),
    ],
)
def test_what_optimum_cannot_do_is_refused_by_name(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in error_of(capsys, str(tmp_path), str(tmp_path / "bundle"), *flags)


@pytest.mark.parametrize(
    ("length", "has_thesis", "said"),
    [(129, False, "must be within 16..128, got 129"), (None, True, "exists and is no bundle")],
)
def test_what_would_be_refused_in_the_end_is_refused_before_torch_runs(
    length: int | None,
    has_thesis: bool,
    said: str,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(via_optimum, "_require_packages", lambda: None)
    monkeypatch.setattr(via_optimum, "_run_optimum", None)
    if has_thesis:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(OrtolanError, match=re.escape(said)):
        via_optimum.export_via_optimum(checkpoint, tmp_path / "out", context_length=length)


def test_an_architecture_that_is_not_known_natively_is_offered_to_optimum(
    make_checkpoint: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = make_checkpoint("bloom")
    assert main(["export", str(checkpoint), str(tmp_path / "bundle")]) == 1
    line = capsys.readouterr().err
    assert "architecture 'bloom' is not supported" in line
    assert line.endswith("; `--via optimum` may know it\n")


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_type": "default", "rope_theta": 5e5}, {"rope_theta": 5e5}),
        (
            {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        ),
        (
            {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
            {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
        ),
    ],
)
def test_a_rotation_of_transformers_5_is_said_as_transformers_4_reads_it(
    rope: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"weights")
    config = {"model_type": "llama", "rope_parameters": rope}
    folder = via_optimum._as_transformers_4(source, config, tmp_path / "view")
    written = json.loads((folder / "config.json").read_text())
    assert written == {"model_type": "llama", **expected}
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_a_config_of_transformers_4_is_left_alone(tmp_path: Path) -> None:
    config = {"model_type": "llama", "rope_theta": 1e4}
    assert via_optimum._as_transformers_4(tmp_path, config, tmp_path / "view") == tmp_path


def test_a_rotation_by_kinds_of_layers_is_refused(tmp_path: Path) -> None:
    config = {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}
    with pytest.raises(UnsupportedModel, match="rope_parameters by kinds of layers"):
        via_optimum._as_transformers_4(tmp_path, config, tmp_path / "view")
