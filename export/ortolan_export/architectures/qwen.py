"""Qwen2 and Qwen3: biases on Q, K and V (2) or norms on Q and K (3); windows on later layers."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture, Mixture, WeightNames
from ortolan_export.architectures.windows import when_used
from ortolan_export.config import Config

_DEFAULTS = {
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}


def _mixture(config: Config) -> Mixture:
    # Files written by transformers 5 have the number under Mixtral's name.
    experts = config.count(
        "num_local_experts" if config.has("num_local_experts") else "num_experts"
    )
    return Mixture(
        experts=experts,
        per_token=config.count("num_experts_per_tok"),
        inner_size=config.count("moe_intermediate_size"),
        is_normalised=config.flag("norm_topk_prob"),
    )


QWEN2 = Architecture(model_type="qwen2", defaults=_DEFAULTS, windows=when_used)
QWEN3 = Architecture(
    model_type="qwen3",
    defaults={**_DEFAULTS, "head_dim": 128},
    windows=when_used,
    qk_norm="head",
)
QWEN3_MOE = Architecture(
    model_type="qwen3_moe",
    defaults={
        **_DEFAULTS,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 4,
    },
    only={
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "mlp_only_layers": [],
        # Its windows go by no list of layers; no published model has them.
        "use_sliding_window": False,
    },
    names=WeightNames(router="mlp.gate"),
    qk_norm="head",
    mixture=_mixture,
)
