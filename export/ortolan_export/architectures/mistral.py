"""Mistral, a Llama whose every layer may have a sliding window, and Mixtral, its experts."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture, Mixture, WeightNames
from ortolan_export.architectures.windows import every_layer
from ortolan_export.config import Config

_DEFAULTS = {
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}


def _mixture(config: Config) -> Mixture:
    return Mixture(
        experts=config.count("num_local_experts"),
        per_token=config.count("num_experts_per_tok"),
        inner_size=config.count("intermediate_size"),
    )


MISTRAL = Architecture(
    model_type="mistral",
    defaults={
        **_DEFAULTS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
    },
    windows=every_layer,
)
MIXTRAL = Architecture(
    model_type="mixtral",
    defaults={
        **_DEFAULTS,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
    },
    only={"hidden_act": "silu"},
    names=WeightNames(
        router="block_sparse_moe.gate",
        expert_gate="block_sparse_moe.experts.{expert}.w1",
        expert_up="block_sparse_moe.experts.{expert}.w3",
        expert_down="block_sparse_moe.experts.{expert}.w2",
    ),
    windows=every_layer,
    mixture=_mixture,
)
