"""A GGUF file gives the bundle that the Hugging Face directory gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer, pre_tokenizers

from ortolan_export.checkpoint import HuggingFaceCheckpoint
from ortolan_export.gguf import GGUFCheckpoint
from ortolan_export.native import export
from ortolan_runtime.bundle import GRAPH_NAME, WEIGHTS_NAME

_THEIR_NAMES = {
    "embed_tokens": "token_embd",
    "input_layernorm": "attn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "norm": "output_norm",
    "lm_head": "output",
}
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def _their_name(name: str) -> str:
    parts = name.split(".")
    theirs = f"{_THEIR_NAMES[parts[-2]]}.{parts[-1]}"
    return f"blk.{parts[2]}.{theirs}" if parts[1] == "layers" else theirs


def _permuted(rows: Any, heads: int) -> Any:
    """Order a head's rows as llama.cpp's converter does: halves become neighbours."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _write_gguf(
    checkpoint: Path, path: Path, kind: gguf.GGMLQuantizationType | None = None, **fields: Any
) -> Path:
    """Write a checkpoint as a GGUF file; matrices in the quantised type ``kind``."""
    source = HuggingFaceCheckpoint(checkpoint)
    config, architecture = source.config, source.config["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config.get("head_dim", 16))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    _add_tokenizer(writer, **fields)
    for name in source.shapes:
        array = source.read(name)
        for module, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if module in name and architecture == "llama":
                array = _permuted(array, config[heads])
        if kind is not None and array.ndim == 2:
            data = gguf.quants.quantize(array, kind)
            writer.add_tensor(_their_name(name), data, raw_dtype=kind)
        else:
            writer.add_tensor(_their_name(name), array)
    _finish(writer)
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, **fields: Any) -> None:
    tokens = [*_BYTES, "<|endoftext|>", "<|im_start|>", "<|im_end|>", "Hi", "<think>"]
    writer.add_tokenizer_model(fields.get("model", "gpt2"))
    writer.add_tokenizer_pre(fields.get("pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3, 3, 3, 1, 4])
    writer.add_token_merges(["H i"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_chat_template("{{ messages }}")


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _same_file(a: Path, b: Path, name: str) -> bool:
    return (a / name).read_bytes() == (b / name).read_bytes()


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_float32_tensors_give_the_very_bytes_of_the_directory(
    family: str, config: dict[str, Any], make_checkpoint: Any, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint(family, **config)
    export(checkpoint, tmp_path / "a", precision="fp32")
    export(_write_gguf(checkpoint, tmp_path / "m.gguf"), tmp_path / "b", precision="fp32")
    assert _same_file(tmp_path / "a", tmp_path / "b", WEIGHTS_NAME)
    assert _same_file(tmp_path / "a", tmp_path / "b", GRAPH_NAME)


@pytest.mark.parametrize("kind", ["Q8_0", "F16", "BF16"])
def test_quantised_tensors_are_undone(kind: str, make_checkpoint: Any, tmp_path: Path) -> None:
    checkpoint = make_checkpoint("llama", hidden_size=64)
    quantised = gguf.GGMLQuantizationType[kind]
    source = GGUFCheckpoint(_write_gguf(checkpoint, tmp_path / "m.gguf", quantised))
    original = HuggingFaceCheckpoint(checkpoint)
    for name in original.shapes:
        np.testing.assert_allclose(source.read(name), original.read(name), atol=5e-3)
        np.testing.assert_array_equal(source.read(name, 3, 5), source.read(name)[3:5])


def test_rope_frequencies_from_the_file_are_used(make_checkpoint: Any, tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0}
    checkpoint = make_checkpoint("llama", rope_scaling=scaling)
    export(checkpoint, tmp_path / "a", precision="fp32")
    plain = _write_gguf(checkpoint, tmp_path / "plain.gguf")
    reader = gguf.GGUFReader(plain)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            inner = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.add_tensor("rope_freqs.weight", np.full(8, 4.0, np.float32))
    _finish(writer)
    export(tmp_path / "m.gguf", tmp_path / "b", precision="fp32")
    assert _same_file(tmp_path / "a", tmp_path / "b", WEIGHTS_NAME)


def test_the_tokenizer_splits_merges_and_keeps_special_tokens_whole(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    source = GGUFCheckpoint(_write_gguf(make_checkpoint("llama"), tmp_path / "m.gguf"))
    texts = source.texts()
    tokenizer = Tokenizer.from_str(texts.tokenizer)
    byte = _BYTES.index
    assert tokenizer.encode("Hi<|im_end|>").ids == [259, 258]
    assert tokenizer.encode("a 12").ids == [byte("a"), byte("Ġ"), byte("1"), byte("2")]
    assert tokenizer.decode(tokenizer.encode("Hi, Zoë 🐦\n").ids) == "Hi, Zoë 🐦\n"
    assert tokenizer.decode([259, 260, 258]) == "Hi<think>"
    assert texts.chat_template == "{{ messages }}"
    assert texts.bos_token_id == 257


def test_every_token_that_ends_a_text_is_an_eos(make_checkpoint: Any, tmp_path: Path) -> None:
    source = GGUFCheckpoint(_write_gguf(make_checkpoint("llama"), tmp_path / "m.gguf"))
    assert source.texts().eos_token_ids == (256, 258)
