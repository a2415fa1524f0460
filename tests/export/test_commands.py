"""``ortolan inspect`` and ``ortolan verify`` say what a bundle is, and whether it still is that."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from families import FAMILIES

from ortolan_export.inspection import kind_of
from ortolan_runtime.bundle import WEIGHTS_NAME, open_bundle, write_manifest
from ortolan_server.cli import main


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a bundle that the test may damage."""
    monkeypatch.setenv("ORTOLAN_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(tiny_bundle, tmp_path / "tiny"))


def _lines(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return what a command has printed, by the first column."""
    printed = capsys.readouterr()
    assert printed.err == ""
    rows = (re.split(r"\s{2,}|: ", line.strip(), maxsplit=1) for line in printed.out.splitlines())
    return {row[0]: row[-1] for row in rows}


def test_inspect_tells_what_a_bundle_is_and_needs(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(bundle)]) == 0
    lines = _lines(capsys)
    assert lines["model"] == "tiny-llama, llama"
    assert lines["KV cache"] == "2 layers x 2 heads x 16, float32, shared"
    assert lines["BOS, EOS"] == "257, [256]"
    assert "GroupQueryAttention" in lines["com.microsoft"]
    assert lines["memory of a sequence"] == "512 bytes a token, 0.066 MB in a full context"


@pytest.mark.parametrize(("size", "said"), [(32, ", blocks of 32;"), (None, "accuracy level 4;")])
def test_inspect_tells_of_4_bit_layers_what_the_manifest_knows(
    size: int | None, said: str, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = open_bundle(bundle).manifest
    four: Any = {"precision": "int4", "int4_accuracy_level": 4, "int4_block_size": size}
    write_manifest(bundle, msgspec.structs.replace(manifest, **four))
    assert main(["inspect", str(bundle)]) == 0
    assert said in _lines(capsys)["precision"]


def test_the_weights_that_inspect_lists_are_the_data_file(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["inspect", str(bundle)])
    lines = _lines(capsys)
    kinds = ("MLP", "attention", "embedding and head", "norms", "rotary tables", "constants")
    total = sum(float(lines[kind].split(" MB")[0]) for kind in kinds) * 1e6
    assert "others" not in lines
    # The file begins each tensor at a page of 4096 bytes.
    assert total <= (bundle / WEIGHTS_NAME).stat().st_size <= total + 30 * 4096


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.embed_tokens.scale", "embedding and head"),
        ("transformer.wpe.weight", "embedding and head"),
        ("gpt_neox.embed_in.weight", "embedding and head"),
        ("transformer.word_embeddings.weight", "embedding and head"),
        ("lm_head.bias", "embedding and head"),
        ("model.layers.3.post_attention_layernorm.weight", "norms"),
        ("transformer.h.0.ln_1.bias", "norms"),
        ("model.decoder.layers.0.self_attn_layer_norm.weight", "norms"),
        ("model.layers.0.self_attn.q_norm.weight", "norms"),
        ("model.layers.0.qkv.codes", "attention"),
        ("transformer.h.0.attn.c_proj.weight", "attention"),
        ("transformer.h.0.self_attention.dense.weight", "attention"),
        ("model.layers.0.self_attn.sinks", "attention"),
        ("model.layers.0.mlp.gate_proj.scales", "MLP"),
        ("model.decoder.layers.0.fc2.weight", "MLP"),
        ("transformer.h.0.mlp.dense_h_to_4h.weight", "MLP"),
        ("model.layers.0.experts.down.weight", "experts"),
        ("model.layers.0.mlp.gate.weight", "experts"),
        ("model.layers.0.block_sparse_moe.gate.weight", "experts"),
        ("rope.1.cos", "rotary tables"),
        ("const.int64.list.-1", "constants"),
        ("something.else", "others"),
    ],
)
def test_a_tensors_name_says_what_it_is_for(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_verify_finds_a_good_bundle_good(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(bundle)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "ok      digests",
        "ok      golden prompts",
        "ok      rows",
        "ok      chunks",
    ]
    assert "24 of 24 tokens as recorded, logprobs off by 0" in lines[1]
    assert lines[2].endswith("5 rows alone and in a batch: the same bits")
    assert lines[3].endswith("34 tokens at once and by 7: the same bits")


def test_verify_finds_weights_that_compute_something_else(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = open_bundle(bundle).manifest
    weights = np.fromfile(bundle / WEIGHTS_NAME, np.int8)
    (-weights).tofile(bundle / WEIGHTS_NAME)  # other numbers, with digests to match
    write_manifest(bundle, manifest)
    assert main(["verify", str(bundle)]) == 1
    assert "FAILED  golden prompts: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--least-agreement", "0.9"], "--least-agreement needs --against"),
        (["--most-perplexity", "1.1"], "--most-perplexity needs --against and --perplexity"),
        (
            ["--most-perplexity", "1.1", "--perplexity"],
            "--most-perplexity needs --against and --perplexity",
        ),
    ],
)
def test_a_limit_of_what_is_not_measured_is_refused(
    options: list[str], said: str, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(bundle), *options]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--least-agreement", "80"], "must be within 0..1, got 80"),
        (["--least-agreement", "nan"], "must be within 0..1, got nan"),
        (["--most-perplexity", "0"], "must be a number > 0, got 0"),
    ],
)
def test_a_limit_out_of_its_range_is_wrong_usage(
    options: list[str], said: str, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["verify", str(bundle), "--against", str(bundle), "--perplexity", *options])
    assert exit_info.value.code == 2
    assert said in capsys.readouterr().err


def test_a_text_that_is_not_there_is_told_before_anything_is_checked(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(bundle), "--perplexity", "nofile"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no text at nofile: --perplexity takes a file, or nothing" in printed.err


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_damaged_bundle_ends_in_one_line(
    command: str, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = bytearray((bundle / WEIGHTS_NAME).read_bytes())
    weights[5000] ^= 1
    (bundle / WEIGHTS_NAME).write_bytes(weights)
    assert main([command, str(bundle)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.fullmatch(r"ortolan: error: .*model\.onnx\.data is damaged.*\n", printed.err)


def test_every_family_has_a_case() -> None:
    from ortolan_export.architectures.registry import ARCHITECTURES

    assert {family for family, _ in FAMILIES.values()} == set(ARCHITECTURES)
