"""A GGUF file gives the bundle that the Hugging Face directory gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer, pre_tokenizers

from ortolan_export.checkpoint import HuggingFaceCheckpoint
from ortolan_export.errors import ExportError, UnsupportedModel
from ortolan_export.gguf import GGUFCheckpoint
from ortolan_export.native import export
from ortolan_runtime.bundle import GRAPH_NAME, WEIGHTS_NAME

_ARCHITECTURES = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())

_LARGE: Any = {"int4_accuracy_level": 0, "int4_block_size": 64}
_LINEAR = {"rope_type": "linear", "factor": 8.0}
_GEMMA = {
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 8,
    "tie_word_embeddings": True,
}
_PHI3_LONG = {
    "original_max_position_embeddings": 32,
    "rope_scaling": {
        "rope_type": "longrope",
        "short_factor": [1.0 + i / 8 for i in range(8)],
        "long_factor": [1.0 + i for i in range(8)],
    },
}


def _permuted(rows: Any, heads: int) -> Any:
    """Order a head's rows as llama.cpp's converter does: halves become neighbours."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _write_gguf(
    checkpoint: Path, path: Path, kind: gguf.GGMLQuantizationType | None = None, **fields: Any
) -> Path:
    """Write a checkpoint as llama.cpp's converter does; matrices in the quantised type ``kind``."""
    source = HuggingFaceCheckpoint(checkpoint)
    config, family = source.config, source.config["model_type"].removesuffix("_text")
    writer = gguf.GGUFWriter(path, family)
    _add_sizes(writer, config)
    _OWN_SETTINGS.get(family, _add_nothing)(writer, config)
    _add_tokenizer(writer, **fields)
    if "parts" in fields:
        writer.add_uint16("split.count", fields["parts"])
    names = gguf.get_tensor_name_map(_ARCHITECTURES[family], config["num_hidden_layers"])
    for name in source.shapes:
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        array = source.read(name)
        if family == "llama":
            array = _permuted_heads(name, array, config)
        if family.startswith("gemma") and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if kind is not None and array.ndim == 2:
            writer.add_tensor(theirs, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(theirs, array)
    _finish(writer)
    return path


def _permuted_heads(name: str, array: Any, config: Any) -> Any:
    for module, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if module in name:
            return _permuted(array, config[heads])
    return array


def _add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config.get("head_dim", 16))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _add_nothing(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_freq_base(10000.0)


def _add_phi3(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(16 * rope["partial_rotary_factor"]))
    writer.add_sliding_window(config["sliding_window"] or 0)
    writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        growth = config["max_position_embeddings"] / config["original_max_position_embeddings"]
        factor = np.sqrt(1 + np.log(growth) / np.log(config["original_max_position_embeddings"]))
        writer.add_rope_scaling_attn_factors(float(factor))
        for length in ("long", "short"):
            divisors = np.array(rope[f"{length}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", divisors)


def _add_gemma2(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])


def _add_gemma3(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config["rope_parameters"]["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


# What llama.cpp's converter writes beyond the sizes.
_OWN_SETTINGS = {
    "phi3": _add_phi3,
    "gemma": lambda writer, config: None,
    "gemma2": _add_gemma2,
    "gemma3": _add_gemma3,
}


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
        ("phi3", {"sliding_window": 8, "partial_rotary_factor": 0.5}),
        ("phi3", _PHI3_LONG),
        ("gemma", {"tie_word_embeddings": True}),
        ("gemma2", {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
        ("gemma3_text", {**_GEMMA, "num_hidden_layers": 6, "rope_scaling": _LINEAR}),
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


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_other_blocks_than_the_files_own_are_refused_before_anything_is_written(
    kind: str, make_checkpoint: Any, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint("llama")
    file = _write_gguf(checkpoint, tmp_path / "m.gguf", gguf.GGMLQuantizationType[kind])
    with pytest.raises(ExportError) as caught:
        export(file, tmp_path / "out", precision="int8+int4", **_LARGE)
    assert str(caught.value) == (
        f"--int4-block-size must be 32 for m.gguf, got 64: its {kind} blocks are kept as they are; "
        "leave it out, or export the model's safetensors or a GGUF file in F16 or Q8_0"
    )
    assert list(tmp_path.iterdir()) == [file]
    assert export(file, tmp_path / "b", precision="int4", int4_block_size=32).int4_block_size == 32


def test_a_file_without_blocks_of_its_own_takes_any_block_size(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    quantised = gguf.GGMLQuantizationType.Q8_0
    file = _write_gguf(make_checkpoint("llama"), tmp_path / "m.gguf", quantised)
    assert export(file, tmp_path / "b", precision="int4", **_LARGE).int4_block_size == 64


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


def test_a_file_that_was_merged_of_parts_is_whole(make_checkpoint: Any, tmp_path: Path) -> None:
    path = _write_gguf(make_checkpoint("llama"), tmp_path / "m.gguf", parts=0)
    assert GGUFCheckpoint(path).config["num_hidden_layers"] == 2


def test_a_message_names_the_gguf_file(make_checkpoint: Any, tmp_path: Path) -> None:
    path = _write_gguf(make_checkpoint("llama", head_dim=24), tmp_path / "m.gguf")
    with pytest.raises(UnsupportedModel, match="m.gguf: the size of a head must be a multiple"):
        export(path, tmp_path / "out")


def test_rope_frequencies_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("rope_freqs.weight", np.ones(8, np.int32))
    _finish(writer)
    with pytest.raises(UnsupportedModel, match="tensor rope_freqs.weight has type I32"):
        GGUFCheckpoint(tmp_path / "m.gguf")


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
