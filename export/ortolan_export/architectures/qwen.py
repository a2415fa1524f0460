"""Qwen2 and Qwen3: biases on Q, K and V (2) or norms on Q and K (3); windows on later layers."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture
from ortolan_export.config import Config
from ortolan_export.errors import UnsupportedModel


def _windows(config: Config) -> tuple[int, ...]:
    """Return the windows that ``layer_types`` or, in older files, ``max_window_layers`` gives."""
    layers = config.count("num_hidden_layers")
    is_windowed = config.flag("use_sliding_window") and config.has("sliding_window")
    width = config.count("sliding_window") if is_windowed else 0
    if not config.has("layer_types"):
        first = int(config.number("max_window_layers"))
        return tuple(width if layer >= first else 0 for layer in range(layers))
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise config.wrong("layer_types", f"must be a list of {layers}", kinds)
    return tuple(_width(kind, width) for kind in kinds)


def _width(kind: object, width: int) -> int:
    if kind == "full_attention":
        return 0
    if kind == "sliding_attention":
        return width
    raise UnsupportedModel(
        "config.json: layer_types must hold full_attention or sliding_attention, "
        f"got {kind!r}; this kind of layer is not supported"
    )


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

QWEN2 = Architecture(model_type="qwen2", defaults=_DEFAULTS, windows=_windows)
QWEN3 = Architecture(
    model_type="qwen3",
    defaults={**_DEFAULTS, "head_dim": 128},
    windows=_windows,
    has_qk_norm=True,
)
