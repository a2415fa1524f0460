"""What is wrong with a source is named in one line, and nothing is written."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from refusals import configure, refusal, rewrite_tensors
from safetensors.numpy import load_file

from ortolan_export.checking import check_bundle
from ortolan_export.checkpoint import load_tokenizer
from ortolan_export.native import export
from ortolan_export.progress import say_nothing
from ortolan_runtime.bundle import WEIGHTS_NAME
from ortolan_server.cli import main


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "mamba"}, "architecture 'mamba' is not supported"),
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": ["llama"]}, r"model_type must be a string, got \['llama'\]"),
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
        ({"rms_norm_eps": 10**400}, "rms_norm_eps must be finite"),
        ({"rope_parameters": {"rope_theta": 1.0, "rope_type": "yarn"}}, "division by zero"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn", "beta_fast": -1}},
            "no rotation can be computed from these values .* correct the one",
        ),
        (
            {
                "rope_parameters": {
                    "rope_theta": 1e4,
                    "rope_type": "longrope",
                    "short_factor": [0.0] * 8,
                }
            },
            "short_factor must hold 8 numbers > 0",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 1e-320}},
            "no rotation can be computed from these values",
        ),
        ({"max_position_embeddings": 5}, "max_position_embeddings must be a whole number >= 16"),
        ({"head_dim": 10**30}, "head_dim must be at most 2147483647"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 21, .* tensors"),
        ({"eos_token_id": "256"}, "eos_token_id must be a token's id or a list of ids, got '256'"),
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
    configure(checkpoint, **fields)
    line = refusal(checkpoint, tmp_path / "out", capsys)
    assert re.search(words, line), line


def test_more_experts_a_token_than_there_are_is_refused(
    make_checkpoint: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_checkpoint("mixtral", num_local_experts=4, num_experts_per_tok=5)
    capsys.readouterr()  # transformers tells how far it is
    line = refusal(source, tmp_path / "out", capsys)
    assert "num_experts_per_tok must be at most 4, the number of experts, got 5" in line


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", "[" * 100_000, "is no JSON"),
        ("generation_config.json", '{"top_k": NaN}', "top_k must be finite, got nan"),
        ("generation_config.json", '{"top_p": "0.9"}', "top_p must be a number, got '0.9'"),
        (
            "tokenizer_config.json",
            '{"chat_template": [{"name": "default", "template": 3}]}',
            "chat_template must be a string or a list of named ones, got 3",
        ),
    ],
)
def test_a_file_with_a_wrong_value_is_refused_by_name(
    name: str,
    content: str,
    words: str,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (checkpoint / name).write_text(content)
    line = refusal(checkpoint, tmp_path / "out", capsys)
    assert name in line
    assert words in line


def test_a_path_without_a_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(tmp_path / "nothing", tmp_path / "out", capsys)
    assert f"no model at {tmp_path / 'nothing'}" in line
    assert "`hf download NAME --local-dir DIR`" in line


def test_a_directory_without_a_config_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refusal(tmp_path / "empty", tmp_path / "out", capsys)


def test_an_adapter_is_refused_with_the_way_to_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    line = refusal(tmp_path / "lora", tmp_path / "out", capsys)
    assert "merge the two with merge_and_unload" in line


def test_a_part_of_a_gguf_is_refused_with_the_way_to_the_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m-00001-of-00003.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.add_tensor("token_embd.weight", np.zeros((320, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    line = refusal(tmp_path / "m-00001-of-00003.gguf", tmp_path / "out", capsys)
    assert "is one of 3 parts; make one file of them with `llama-gguf-split --merge" in line


def test_a_file_that_is_no_gguf_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.gguf").write_bytes(b"these are notes, not weights" * 10)
    line = refusal(tmp_path / "notes.gguf", tmp_path / "out", capsys)
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
    assert "got 'rwkv6'" in refusal(tmp_path / "m.gguf", tmp_path / "out", capsys)
    assert time.monotonic() - start < 10


def test_a_gguf_with_a_type_that_cannot_be_undone_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_gguf(tmp_path / "m.gguf", "llama", np.zeros((320, 64), np.int32))
    line = refusal(tmp_path / "m.gguf", tmp_path / "out", capsys)
    assert "tensor token_embd.weight has type I32" in line


def test_a_gguf_without_heads_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embedding = np.zeros((320, 64), np.float32)
    _write_gguf(tmp_path / "m.gguf", "llama", embedding, attention__head_count=0)
    line = refusal(tmp_path / "m.gguf", tmp_path / "out", capsys)
    assert "llama.attention.head_count must be a whole number >= 1, got 0" in line


def test_a_gguf_whose_words_are_damaged_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_gguf(tmp_path / "m.gguf", "llama", np.zeros((320, 64), np.float32))
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole.replace(b"llama", b"l\xffama", 1))
    assert "is damaged" in refusal(tmp_path / "m.gguf", tmp_path / "out", capsys)


def test_a_truncated_gguf_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write_gguf(tmp_path / "m.gguf", "llama", np.zeros((320, 64), np.float32))
    whole = (tmp_path / "m.gguf").read_bytes()
    for kept in (len(whole) // 2, 40):
        (tmp_path / "m.gguf").write_bytes(whole[:kept])
        line = refusal(tmp_path / "m.gguf", tmp_path / "out", capsys)
        assert "is no complete GGUF file" in line


def test_truncated_safetensors_are_refused_before_any_weight_is_read(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = sorted(checkpoint.glob("*.safetensors"))[-1]
    shard.write_bytes(shard.read_bytes()[:-100])
    assert f"{shard} is damaged" in refusal(checkpoint, tmp_path / "out", capsys)


def test_a_missing_shard_is_named(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = sorted(checkpoint.glob("*.safetensors"))[0]
    shard.unlink()
    assert f"{shard} is missing" in refusal(checkpoint, tmp_path / "out", capsys)


def test_a_checkpoint_quantised_in_place_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite_tensors(checkpoint, {name: np.zeros((96, 64), np.int8)})
    assert f"tensor {name} must be one of" in refusal(checkpoint, tmp_path / "out", capsys)


def test_a_tied_head_that_is_not_the_embedding_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(checkpoint, tie_word_embeddings=True)
    line = refusal(checkpoint, tmp_path / "out", capsys)
    assert "lm_head.weight must equal model.embed_tokens.weight" in line
    assert "set tie_word_embeddings to false" in line


def test_a_head_that_is_missing_is_offered_to_be_tied(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite_tensors(checkpoint, {"lm_head.weight": None})
    line = refusal(checkpoint, tmp_path / "out", capsys)
    assert "no tensor lm_head.weight, though tie_word_embeddings is false" in line
    configure(checkpoint, tie_word_embeddings=True)
    assert main(["export", str(checkpoint), str(tmp_path / "out")]) == 0


def test_a_tied_head_that_the_checkpoint_holds_twice_is_kept_once(
    make_checkpoint: Any, checkpoint: Path, tmp_path: Path
) -> None:
    shards = make_checkpoint("llama").glob("*.safetensors")
    tensors = {name: array for shard in shards for name, array in load_file(shard).items()}
    embedding = tensors["model.embed_tokens.weight"]
    configure(checkpoint, tie_word_embeddings=True)
    rewrite_tensors(checkpoint, {"lm_head.weight": embedding})
    assert main(["export", str(checkpoint), str(tmp_path / "twice")]) == 0
    rewrite_tensors(checkpoint, {"lm_head.weight": None})
    assert main(["export", str(checkpoint), str(tmp_path / "once")]) == 0
    once, twice = (tmp_path / name / WEIGHTS_NAME for name in ("once", "twice"))
    assert once.read_bytes() == twice.read_bytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(
    value: float, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    weight = np.zeros((64, 96), np.float32)
    weight[3, 5] = value
    rewrite_tensors(checkpoint, {name: weight})
    assert f"tensor {name} holds infinities" in refusal(checkpoint, tmp_path / "out", capsys)


def test_weights_that_overflow_are_found_before_the_bundle_exists(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite_tensors(checkpoint, {"model.norm.weight": np.full(64, 3e38, np.float32)})
    line = refusal(checkpoint, tmp_path / "out", capsys, "--precision", "fp32")
    assert "logits that are no numbers" in line


def test_activations_that_overflow_are_found_before_the_bundle_exists(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    rewrite_tensors(checkpoint, {name: np.full((96, 64), 3e37, np.float32)})
    line = refusal(checkpoint, tmp_path / "out", capsys)
    assert "the inputs of model.layers.1.mlp.down_proj are no numbers" in line


def test_a_tokenizer_larger_than_the_logits_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = checkpoint / "tokenizer.json"
    tokenizer = load_tokenizer(file.read_text(), file)
    tokenizer.add_tokens([f"<extra{i}>" for i in range(80)])
    tokenizer.save(str(file))
    line = refusal(checkpoint, tmp_path / "out", capsys)
    assert "largest id must be < 320, the model's vocabulary, got 337" in line


def test_a_broken_tokenizer_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "tokenizer.json").write_text('{"model": 3}')
    assert "no tokenizer that can be loaded" in refusal(checkpoint, tmp_path / "out", capsys)


def test_a_context_longer_than_the_model_allows_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(checkpoint, tmp_path / "out", capsys, "--context-length", "129")
    assert "--context-length must be within 16..128 for this model, got 129" in line


@pytest.mark.parametrize("precision", ["int8", "int4", "fp32"])
def test_the_shortest_context_holds_the_golden_prompts(
    precision: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(checkpoint, tmp_path / "out", capsys, "--context-length", "15")
    assert "--context-length must be within 16..128 for this model, got 15" in line
    export(checkpoint, tmp_path / "out", precision=precision, context_length=16)
    assert all(check.has_passed for check in check_bundle(tmp_path / "out", say_nothing))
