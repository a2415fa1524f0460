"""Falcon: multi-query (7B), grouped with two norms (40B and later), or one after the other."""

from __future__ import annotations

import msgspec

from ortolan_export.architectures.family import Architecture, WeightNames
from ortolan_export.config import Config

_NAMES = WeightNames(
    embedding="transformer.word_embeddings",
    last_norm="transformer.ln_f",
    layer="transformer.h.{layer}.",
    qkv="self_attention.query_key_value",
    attention_output="self_attention.dense",
    gate=None,
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)


def _variant(architecture: Architecture, config: Config) -> Architecture:
    """Return the family with the norms, the heads and the order of QKV that the flags say."""
    is_new = config.flag("new_decoder_architecture")
    is_parallel = is_new or config.flag("parallel_attn", otherwise=True)
    has_one_kv_head = not is_new and config.flag("multi_query", otherwise=True)
    norms = config.count("num_ln_in_parallel_attn", otherwise=2 if is_new else 1)
    names = _NAMES
    if is_parallel and norms == 2:
        names = msgspec.structs.replace(names, attention_norm="ln_attn", mlp_norm="ln_mlp")
    elif is_parallel:
        names = msgspec.structs.replace(names, mlp_norm=None)
    # The file's own number of KV heads counts in the new architecture alone.
    fields = {"num_key_value_heads": "num_kv_heads"} if is_new else {}
    defaults = {"num_key_value_heads": 1} if has_one_kv_head else {}
    return msgspec.structs.replace(
        architecture,
        names=names,
        is_parallel=is_parallel,
        is_grouped=not has_one_kv_head,
        fields={**architecture.fields, **fields},
        defaults={**architecture.defaults, **defaults},
    )


FALCON = Architecture(
    model_type="falcon",
    defaults={
        "hidden_act": "gelu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
    fields={
        "hidden_act": "activation",
        "intermediate_size": "ffn_hidden_size",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    only={"alibi": False},
    names=_NAMES,
    norm="layer",
    variant=_variant,
)
