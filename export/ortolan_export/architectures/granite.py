"""Granite: a Llama with factors on the embedding, the residual stream, attention and logits."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture, Scales
from ortolan_export.config import Config


def _scales(config: Config, head_size: int) -> Scales:
    return Scales(
        attention=config.positive("attention_multiplier", otherwise=1.0),
        embedding=config.positive("embedding_multiplier", otherwise=1.0),
        residual=config.positive("residual_multiplier", otherwise=1.0),
        logits=1 / config.positive("logits_scaling", otherwise=1.0),
    )


GRANITE = Architecture(
    model_type="granite",
    defaults={
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    scales=_scales,
)
