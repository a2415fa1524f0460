"""Mistral: a Llama whose every layer may have a sliding window."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture
from ortolan_export.architectures.windows import every_layer

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
    windows=every_layer,
)
