"""Writes tiny checkpoints of any family with random weights, for the tests and for scripts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

# Small enough to export in a moment; two layers and grouped heads, so that nothing is trivial.
_TINY = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "eos_token_id": 256,
    "bos_token_id": 257,
    "pad_token_id": None,
}


def write_checkpoint(folder: Path, family: str, **config: Any) -> Path:
    """Write a Hugging Face directory with random weights and a tokenizer of bytes; return it.

    ``config`` overrides fields of the tiny configuration, of which a family gets those it knows.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch and transformers say at import is theirs
        import torch
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM

        kind = CONFIG_MAPPING[family]
        known = set(kind().to_dict()) | set(kind.attribute_map)
        tiny = {name: value for name, value in _TINY.items() if name in known}
        model = AutoModelForCausalLM.from_config(kind(**{**tiny, **config}))
        generator = torch.Generator().manual_seed(20)
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            is_gain = weight.ndim == 1 and name.endswith("weight")
            # Wide enough that attention picks out positions instead of averaging them.
            weight.data = 1 + 0.1 * noise if is_gain else 0.15 * noise
        model.save_pretrained(folder, max_shard_size="100KB")
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def byte_level_tokenizer() -> Tokenizer:
    """Return a tokenizer of 258 tokens: the bytes, and the special tokens <eos> and <bos>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>", "<bos>"])
    return tokenizer
