"""GPT-NeoX and Pythia: attention and MLP in parallel, heads rotated in part."""

from __future__ import annotations

import msgspec

from ortolan_export.architectures.family import Architecture, WeightNames
from ortolan_export.config import Config


def _variant(architecture: Architecture, config: Config) -> Architecture:
    is_parallel = config.flag("use_parallel_residual", otherwise=True)
    return msgspec.structs.replace(architecture, is_parallel=is_parallel)


GPT_NEOX = Architecture(
    model_type="gpt_neox",
    defaults={
        "hidden_act": "gelu",
        "max_position_embeddings": 2048,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    fields={
        "partial_rotary_factor": "rotary_pct",
        "rms_norm_eps": "layer_norm_eps",
        "rope_theta": "rotary_emb_base",
    },
    names=WeightNames(
        embedding="gpt_neox.embed_in",
        head="embed_out",
        last_norm="gpt_neox.final_layer_norm",
        layer="gpt_neox.layers.{layer}.",
        qkv="attention.query_key_value",
        attention_output="attention.dense",
        gate=None,
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    ),
    # Masks and frequencies that old files carry.
    ignored=("rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"),
    norm="layer",
    is_grouped=True,
    variant=_variant,
)
