"""Qwen2 and Qwen3: biases on Q, K and V (2) or norms on Q and K (3); windows on later layers."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture
from ortolan_export.architectures.windows import when_used

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

QWEN2 = Architecture(model_type="qwen2", defaults=_DEFAULTS, windows=when_used)
QWEN3 = Architecture(
    model_type="qwen3",
    defaults={**_DEFAULTS, "head_dim": 128},
    windows=when_used,
    qk_norm="head",
)
