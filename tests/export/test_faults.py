"""What cannot be exported ends in one line that names it, and leaves nothing half-written."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ortolan_export.checkpoint import load_tokenizer
from ortolan_runtime.bundle import new_folder, open_bundle
from ortolan_server.cli import main

_DYING_EXPORT = """
import os, signal, sys
from pathlib import Path
from ortolan_export.native import export
def report(stage, done, total):
    if stage == "writing weights" and done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)
export(Path(sys.argv[1]), Path(sys.argv[2]), report=report)
"""

_TERMINATED_EXPORT = """
import contextlib, os, signal, sys
from ortolan_export.commands import making
from ortolan_server.cli import main
def report(stage, done, total):
    if stage == sys.argv[3] and done >= total // 2:
        os.kill(os.getpid(), signal.SIGTERM)
making.progress_bar = lambda: contextlib.nullcontext(report)
sys.exit(main(["export", *sys.argv[1:3]]))
"""

_EXPORT_ON_A_FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
from ortolan_server.cli import main
sys.exit(main(["export", *sys.argv[1:]]))
"""


@pytest.fixture
def checkpoint(make_checkpoint: Any, tmp_path: Path) -> Path:
    """Give a Llama that the test may damage."""
    return Path(shutil.copytree(make_checkpoint("llama"), tmp_path / "model"))


def _configure(checkpoint: Path, **fields: Any) -> None:
    file = checkpoint / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def _rewrite_tensors(checkpoint: Path, changes: dict[str, Any]) -> None:
    """Put all tensors into one file, with those of ``changes`` added, replaced or (None) gone."""
    tensors: dict[str, Any] = {}
    for shard in checkpoint.glob("*.safetensors"):
        tensors |= load_file(shard)
        shard.unlink()
    (checkpoint / "model.safetensors.index.json").unlink()
    tensors = {name: array for name, array in {**tensors, **changes}.items() if array is not None}
    save_file(tensors, checkpoint / "model.safetensors")


def _refusal(source: Path, out: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return the one line that an export ends with, having checked all that must hold of it."""
    before = sorted(out.parent.iterdir())
    assert main(["export", str(source), str(out), *options]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("ortolan: error: ")
    assert printed.err.count("\n") == 1
    assert sorted(out.parent.iterdir()) == before
    return printed.err


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "mamba"}, "architecture 'mamba' is not supported"),
        ({"model_type": None}, "model_type must be a string"),
        ({"rope_scaling": {"rope_type": "spiral"}, "rope_parameters": None}, "'spiral'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": "x"}}, "factor"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}},
            "one named full_attention",
        ),
        ({"hidden_act": "xielu"}, "hidden_act must be one of .* got 'xielu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a whole number >= 1, got 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must divide 4 heads, got 3"),
        ({"head_dim": 20}, "multiple of 16, got 20"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps must be a number, got 'tiny'"),
        ({"num_hidden_layers": 3}, "no tensor model.layers.2.input_layernorm.weight"),
        ({"num_hidden_layers": 1}, "tensor model.layers.1.*is no part of a llama"),
        ({"vocab_size": 321}, r"must have shape \[321, 64\], got \[320, 64\]"),
    ],
)
def test_a_configuration_that_is_not_supported_is_refused_by_name(
    fields: dict[str, Any],
    words: str,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _configure(checkpoint, **fields)
    line = _refusal(checkpoint, tmp_path / "out", capsys)
    assert re.search(words, line), line


def test_a_path_without_a_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = _refusal(tmp_path / "nothing", tmp_path / "out", capsys)
    assert f"no model at {tmp_path / 'nothing'}" in line


def test_a_directory_without_a_config_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in _refusal(tmp_path / "empty", tmp_path / "out", capsys)


def test_a_file_that_is_no_gguf_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.gguf").write_bytes(b"these are notes, not weights" * 10)
    line = _refusal(tmp_path / "notes.gguf", tmp_path / "out", capsys)
    assert "is no complete GGUF file" in line


def _write_gguf(path: Path, architecture: str, embedding: Any, **fields: int) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in fields.items():
        writer.add_uint32(f"{architecture}.{name.replace('__', '.')}", value)
    writer.add_tensor("token_embd.weight", embedding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_of_an_unknown_architecture_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_gguf(tmp_path / "m.gguf", "rwkv6", np.zeros((320, 64), np.float32))
    start = time.monotonic()
    assert "got 'rwkv6'" in _refusal(tmp_path / "m.gguf", tmp_path / "out", capsys)
    assert time.monotonic() - start < 10


def test_a_gguf_with_a_type_that_cannot_be_undone_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_gguf(tmp_path / "m.gguf", "llama", np.zeros((320, 64), np.int32))
    line = _refusal(tmp_path / "m.gguf", tmp_path / "out", capsys)
    assert "tensor token_embd.weight has type I32" in line


def test_a_gguf_without_heads_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embedding = np.zeros((320, 64), np.float32)
    _write_gguf(tmp_path / "m.gguf", "llama", embedding, attention__head_count=0)
    line = _refusal(tmp_path / "m.gguf", tmp_path / "out", capsys)
    assert "llama.attention.head_count must be a number > 0, got 0" in line


def test_a_truncated_gguf_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write_gguf(tmp_path / "m.gguf", "llama", np.zeros((320, 64), np.float32))
    whole = (tmp_path / "m.gguf").read_bytes()
    for kept in (len(whole) // 2, 40):
        (tmp_path / "m.gguf").write_bytes(whole[:kept])
        line = _refusal(tmp_path / "m.gguf", tmp_path / "out", capsys)
        assert "is no complete GGUF file" in line


def test_truncated_safetensors_are_refused_before_any_weight_is_read(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = sorted(checkpoint.glob("*.safetensors"))[-1]
    shard.write_bytes(shard.read_bytes()[:-100])
    assert f"{shard} is damaged" in _refusal(checkpoint, tmp_path / "out", capsys)


def test_a_missing_shard_is_named(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = sorted(checkpoint.glob("*.safetensors"))[0]
    shard.unlink()
    assert f"{shard} is missing" in _refusal(checkpoint, tmp_path / "out", capsys)


def test_a_checkpoint_quantised_in_place_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    _rewrite_tensors(checkpoint, {name: np.zeros((96, 64), np.int8)})
    assert f"tensor {name} must be one of" in _refusal(checkpoint, tmp_path / "out", capsys)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(
    value: float, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    weight = np.zeros((64, 96), np.float32)
    weight[3, 5] = value
    _rewrite_tensors(checkpoint, {name: weight})
    assert f"tensor {name} holds infinities" in _refusal(checkpoint, tmp_path / "out", capsys)


def test_weights_that_overflow_are_found_before_the_bundle_exists(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _rewrite_tensors(checkpoint, {"model.norm.weight": np.full(64, 3e38, np.float32)})
    line = _refusal(checkpoint, tmp_path / "out", capsys, "--precision", "fp32")
    assert "logits that are no numbers" in line


def test_activations_that_overflow_are_found_before_the_bundle_exists(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    _rewrite_tensors(checkpoint, {name: np.full((96, 64), 3e37, np.float32)})
    line = _refusal(checkpoint, tmp_path / "out", capsys)
    assert "the inputs of model.layers.1.mlp.down_proj are no numbers" in line


def test_a_missing_package_is_named(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    line = _refusal(checkpoint, tmp_path / "out", capsys)
    assert "needs the package onnxruntime: pip install 'ortolan[export,cpu]'" in line


def test_a_tokenizer_larger_than_the_logits_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = checkpoint / "tokenizer.json"
    tokenizer = load_tokenizer(file.read_text(), file)
    tokenizer.add_tokens([f"<extra{i}>" for i in range(80)])
    tokenizer.save(str(file))
    line = _refusal(checkpoint, tmp_path / "out", capsys)
    assert "largest id must be < 320, the model's vocabulary, got 337" in line


def test_a_broken_tokenizer_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "tokenizer.json").write_text('{"model": 3}')
    assert "no tokenizer that can be loaded" in _refusal(checkpoint, tmp_path / "out", capsys)


def test_a_context_longer_than_the_model_allows_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = _refusal(checkpoint, tmp_path / "out", capsys, "--context-length", "129")
    assert "--context-length must be within 2..128 for this model, got 129" in line


def test_a_folder_that_is_no_bundle_is_not_replaced(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    assert "is no bundle" in _refusal(checkpoint, tmp_path / "out", capsys)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_an_unknown_option_ends_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["export", "source", "out", "--precision", "int3"])
    assert exit_info.value.code == 2
    told = capsys.readouterr().err
    assert "`ortolan export --help`" in told
    assert told.count("\n") == 1


def test_an_export_killed_midway_leaves_the_old_bundle_intact(
    checkpoint: Path, tmp_path: Path
) -> None:
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 0
    before = open_bundle(tmp_path / "out", always_verify=True).manifest
    dying = subprocess.run(
        [sys.executable, "-c", _DYING_EXPORT, checkpoint, tmp_path / "out"], check=False
    )
    assert dying.returncode == -signal.SIGKILL
    assert open_bundle(tmp_path / "out", always_verify=True).manifest == before


def test_what_a_killed_export_left_goes_at_the_next(checkpoint: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _DYING_EXPORT, checkpoint, tmp_path / "out"], check=False)
    (left,) = tmp_path.glob(".out.*")
    os.utime(left, (0, 0))
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "out"]


def test_what_another_export_is_writing_stays(checkpoint: Path, tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as written:
        os.utime(written, (0, 0))
        assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 0
        assert written.is_dir()
        shutil.copytree(tmp_path / "out", written, dirs_exist_ok=True)
    open_bundle(tmp_path / "out", always_verify=True)


@pytest.mark.parametrize(
    "stage", ["measuring activations", "writing weights", "hashing the source"]
)
def test_a_terminated_export_leaves_the_old_bundle_and_nothing_else(
    stage: str, checkpoint: Path, tmp_path: Path
) -> None:
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 0
    before = sorted(tmp_path.iterdir())
    stopped = subprocess.run(
        [sys.executable, "-c", _TERMINATED_EXPORT, checkpoint, tmp_path / "out", stage],
        check=False,
        capture_output=True,
        text=True,
    )
    assert stopped.returncode == 130
    assert stopped.stderr == "ortolan: interrupted; nothing was written\n"
    assert sorted(tmp_path.iterdir()) == before
    open_bundle(tmp_path / "out", always_verify=True)


def test_a_full_disk_leaves_the_old_bundle_and_nothing_else(
    checkpoint: Path, tmp_path: Path
) -> None:
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 0
    before = sorted(tmp_path.iterdir())
    failed = subprocess.run(
        [sys.executable, "-c", _EXPORT_ON_A_FULL_DISK, checkpoint, tmp_path / "out"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 1
    assert failed.stderr.startswith("ortolan: error: ")
    assert failed.stderr.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
    open_bundle(tmp_path / "out", always_verify=True)
