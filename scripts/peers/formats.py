"""Writes the random model as a Hugging Face directory and as a GGUF file, layer by layer."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from peers.weights import Shape, tensors_of, tokenizer_of, vocabulary_of


def write_huggingface(folder: Path, shape: Shape) -> None:
    """Write config, tokenizer and bfloat16 weights in shards of a layer."""
    folder.mkdir(parents=True)
    vocabulary = vocabulary_of(shape.vocabulary)
    tokenizer_of(vocabulary).save(str(folder / "tokenizer.json"))
    config = _config(shape) | {
        "bos_token_id": vocabulary.bos_id,
        "eos_token_id": vocabulary.eos_id,
    }
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>"},
    )
    homes: dict[str, str] = {}
    for number, tensors in enumerate(tensors_of(shape)):
        shard = f"model-{number:05d}.safetensors"
        save_file(
            {t.huggingface: t.values.astype(ml_dtypes.bfloat16) for t in tensors},
            folder / shard,
            metadata={"format": "pt"},
        )
        homes |= {t.huggingface: shard for t in tensors}
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": homes})


def write_gguf(file: Path, shape: Shape) -> None:
    """Write the model in float32, of which llama-quantize makes the others."""
    writer = gguf.GGUFWriter(file, "qwen2")
    _describe(writer, shape)
    for tensors in tensors_of(shape):
        for tensor in tensors:
            values = tensor.values
            writer.add_tensor_info(tensor.gguf, values.shape, np.dtype(np.float32), values.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensors in tensors_of(shape):
        for tensor in tensors:
            writer.write_tensor_data(tensor.values)
    writer.close()


def _describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    vocabulary = vocabulary_of(shape.vocabulary)
    plain = len(vocabulary.tokens) - 2
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * plain + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges([f"{one} {two}" for one, two in vocabulary.merges])
    writer.add_bos_token_id(vocabulary.bos_id)
    writer.add_eos_token_id(vocabulary.eos_id)
    writer.add_add_bos_token(False)


def _config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_base,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
    }


def _write_json(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
