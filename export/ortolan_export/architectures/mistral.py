"""Mistral: a Llama whose every layer may have a sliding window."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture
from ortolan_export.config import Config


def _windows(config: Config) -> tuple[int, ...]:
    width = config.count("sliding_window") if config.has("sliding_window") else 0
    return (width,) * config.count("num_hidden_layers")


MISTRAL = Architecture(
    model_type="mistral",
    defaults={
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
    windows=_windows,
)
