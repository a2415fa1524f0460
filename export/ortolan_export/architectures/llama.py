"""Llama 1 to 3, SmolLM and whatever else calls itself a llama."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture

LLAMA = Architecture(
    model_type="llama",
    defaults={
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
)
