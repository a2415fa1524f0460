"""OPT: learned positions from 2 on, layer norms."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture, WeightNames
from ortolan_export.config import Config
from ortolan_export.errors import UnsupportedModel


def _variant(architecture: Architecture, config: Config) -> Architecture:
    width, hidden_size = config.get("word_embed_proj_dim"), config.count("hidden_size")
    if width not in (None, hidden_size):
        raise UnsupportedModel(
            f"{config.origin}: word_embed_proj_dim must be hidden_size, {hidden_size}, "
            f"got {width}; this variant is not supported"
        )
    return architecture


OPT = Architecture(
    model_type="opt",
    defaults={
        "hidden_act": "relu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    fields={"hidden_act": "activation_function", "intermediate_size": "ffn_dim"},
    only={
        "_remove_final_layer_norm": False,
        "do_layer_norm_before": True,
        "layer_norm_elementwise_affine": True,
    },
    names=WeightNames(
        embedding="model.decoder.embed_tokens",
        positions="model.decoder.embed_positions",
        last_norm="model.decoder.final_layer_norm",
        layer="model.decoder.layers.{layer}.",
        attention_norm="self_attn_layer_norm",
        attention_output="self_attn.out_proj",
        mlp_norm="final_layer_norm",
        gate=None,
        up="fc1",
        down="fc2",
    ),
    norm="layer",
    position_offset=2,
    variant=_variant,
)
