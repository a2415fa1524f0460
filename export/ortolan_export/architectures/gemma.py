"""Gemma 1 to 3: gains that start from 1, a scaled embedding, soft-caps, windows on most layers."""

from __future__ import annotations

from ortolan_export.architectures.family import ACTIVATIONS, Architecture, Scales, WeightNames
from ortolan_export.architectures.windows import all_but_each
from ortolan_export.config import Config

_DEFAULTS = {
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
_SANDWICH = WeightNames(
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)


def _first_scales(config: Config, head_size: int) -> Scales:
    return Scales(attention=head_size**-0.5, embedding=config.count("hidden_size") ** 0.5)


def _later_scales(config: Config, head_size: int) -> Scales:
    return Scales(
        attention=config.positive("query_pre_attn_scalar") ** -0.5,
        embedding=config.count("hidden_size") ** 0.5,
        attention_softcap=config.number("attn_logit_softcapping", otherwise=0.0),
        logits_softcap=config.number("final_logit_softcapping", otherwise=0.0),
    )


GEMMA = Architecture(
    model_type="gemma",
    defaults=_DEFAULTS,
    only={"use_bidirectional_attention": False},
    norm_offset=1.0,
    # The first files say gelu and mean its approximation.
    activations={**ACTIVATIONS, "gelu": "gelu_tanh"},
    scales=_first_scales,
)
GEMMA2 = Architecture(
    model_type="gemma2",
    defaults={
        **_DEFAULTS,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
    fields={"hidden_act": "hidden_activation"},
    only={"use_bidirectional_attention": False},
    names=_SANDWICH,
    norm_offset=1.0,
    windows=all_but_each(2),
    scales=_later_scales,
)
GEMMA3 = Architecture(
    model_type="gemma3_text",
    defaults={
        **_DEFAULTS,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
        "sliding_window": 4096,
        "vocab_size": 262208,
    },
    fields={"hidden_act": "hidden_activation"},
    only={"use_bidirectional_attention": False},
    names=_SANDWICH,
    norm_offset=1.0,
    qk_norm="head",
    local_rope_field="rope_local_base_freq",
    windows=all_but_each(6),
    scales=_later_scales,
)
