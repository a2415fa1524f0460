"""gpt-oss: stacked experts with biases and a limit, windows on every other layer, sinks."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture, Mixture, WeightNames
from ortolan_export.architectures.windows import all_but_each
from ortolan_export.config import Config


def _mixture(config: Config) -> Mixture:
    return Mixture(
        experts=config.count("num_local_experts"),
        per_token=config.count("num_experts_per_tok"),
        inner_size=config.count("intermediate_size"),
        alpha=config.positive("swiglu_alpha"),
        beta=1.0,
        limit=config.positive("swiglu_limit"),
    )


GPT_OSS = Architecture(
    model_type="gpt_oss",
    defaults={
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "rope_theta": 150000.0,
        "sliding_window": 128,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
    },
    names=WeightNames(
        sinks="self_attn.sinks",
        router="mlp.router",
        stacked_gate_up="mlp.experts.gate_up_proj",
        stacked_down="mlp.experts.down_proj",
    ),
    windows=all_but_each(2),
    mixture=_mixture,
)
