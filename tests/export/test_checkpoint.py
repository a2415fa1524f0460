"""What is read from a Hugging Face directory besides its weights, and how weights are read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ortolan_export.checkpoint import HuggingFaceCheckpoint
from ortolan_export.native import export
from ortolan_runtime.bundle import WEIGHTS_NAME, open_bundle
from terminals import in_a_terminal


def _write(checkpoint: Path, name: str, **fields: Any) -> None:
    file = checkpoint / name
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**known, **fields}))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_every_float_type_is_read_as_float32(dtype: Any, checkpoint: Path) -> None:
    for shard in checkpoint.glob("*.safetensors"):
        tensors = {name: array.astype(dtype) for name, array in load_file(shard).items()}
        save_file(tensors, shard)
    source = HuggingFaceCheckpoint(checkpoint)
    rows = source.read("model.embed_tokens.weight", 3, 5)
    assert rows.dtype == np.float32
    shard = next(s for s in checkpoint.glob("*.safetensors") if _holds_embedding(s))
    expected = load_file(shard)["model.embed_tokens.weight"].astype(np.float32)[3:5]
    np.testing.assert_array_equal(rows, expected)


def _holds_embedding(shard: Path) -> bool:
    return "model.embed_tokens.weight" in load_file(shard)


def test_shards_give_the_bundle_of_a_single_file(checkpoint: Path, tmp_path: Path) -> None:
    assert len(list(checkpoint.glob("*.safetensors"))) > 1
    export(checkpoint, tmp_path / "a")
    tensors: dict[str, Any] = {}
    for shard in checkpoint.glob("*.safetensors"):
        tensors |= load_file(shard)
        shard.unlink()
    (checkpoint / "model.safetensors.index.json").unlink()
    save_file(tensors, checkpoint / "model.safetensors")
    export(checkpoint, tmp_path / "b")
    a, b = ((tmp_path / name / WEIGHTS_NAME).read_bytes() for name in "ab")
    assert a == b


def test_the_eos_list_is_the_union_of_all_three_files(checkpoint: Path) -> None:
    _write(checkpoint, "generation_config.json", eos_token_id=[7, 9])
    _write(checkpoint, "config.json", eos_token_id=8)
    _write(checkpoint, "tokenizer_config.json", eos_token={"content": "<eos>"})
    assert HuggingFaceCheckpoint(checkpoint).texts().eos_token_ids == (7, 8, 9, 256)


def test_special_tokens_past_the_vocabulary_are_left_out(checkpoint: Path, tmp_path: Path) -> None:
    _write(checkpoint, "generation_config.json", bos_token_id=320, eos_token_id=[-1, 7, 50256])
    manifest = export(checkpoint, tmp_path / "out")
    assert (manifest.bos_token_id, manifest.eos_token_ids) == (None, (7, 256))


def test_generation_defaults_are_kept(checkpoint: Path) -> None:
    _write(checkpoint, "generation_config.json", temperature=0.6, top_p=0.9, top_k=20)
    defaults = HuggingFaceCheckpoint(checkpoint).texts().generation_defaults
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (0.6, 0.9, 20)
    assert defaults.repetition_penalty is None


_NAMED_TEMPLATES = [
    {"name": "tools", "template": "x"},
    {"name": "default", "template": "plain"},
]


@pytest.mark.parametrize("template", ["plain", _NAMED_TEMPLATES])
def test_the_chat_template_is_taken_from_the_tokenizer_config(
    template: Any, checkpoint: Path
) -> None:
    _write(checkpoint, "tokenizer_config.json", chat_template=template)
    assert HuggingFaceCheckpoint(checkpoint).texts().chat_template == "plain"


def test_a_chat_template_file_goes_first_and_into_the_bundle(
    checkpoint: Path, tmp_path: Path
) -> None:
    _write(checkpoint, "tokenizer_config.json", chat_template="old")
    (checkpoint / "chat_template.jinja").write_text("{{ new }}")
    export(checkpoint, tmp_path / "out")
    assert open_bundle(tmp_path / "out").chat_template == "{{ new }}"


def test_the_manifest_says_what_the_source_is(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "out", name="tiny", context_length=64)
    manifest = open_bundle(tmp_path / "out").manifest
    assert (manifest.name, manifest.architecture, manifest.precision) == ("tiny", "llama", "int8")
    assert (manifest.layers, manifest.kv_heads, manifest.head_size) == (2, 2, 16)
    assert (manifest.vocab_size, manifest.context_length) == (320, 64)
    assert (manifest.bos_token_id, manifest.eos_token_ids) == (257, (256,))
    assert manifest.single_row_exact
    assert manifest.graph.logsumexp == "logsumexp"
    assert all(len(golden.tokens) == 8 for golden in manifest.golden)


def test_another_source_has_another_digest(checkpoint: Path, tmp_path: Path) -> None:
    first = export(checkpoint, tmp_path / "out").source_digest
    assert export(checkpoint, tmp_path / "out").source_digest == first
    _write(checkpoint, "config.json", rms_norm_eps=1e-5)
    assert export(checkpoint, tmp_path / "out").source_digest != first


def test_progress_reaches_its_end_in_every_stage(checkpoint: Path, tmp_path: Path) -> None:
    last: dict[str, tuple[int, int]] = {}

    def report(stage: str, done: int, total: int) -> None:
        assert last.get(stage, (0, 0))[0] <= done <= total
        last[stage] = (done, total)

    export(checkpoint, tmp_path / "out", report=report)
    assert set(last) >= {"writing weights", "hashing the source", "checking the graph"}
    assert all(done == total for done, total in last.values())


def test_a_terminal_sees_a_progress_bar(checkpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ortolan_server", "export", checkpoint, tmp_path / "out"]
    code, printed, seen = in_a_terminal(command)
    assert code == 0, seen
    assert "writing weights" in seen
    assert printed.startswith(f"{tmp_path / 'out'}: model, llama, int8")
