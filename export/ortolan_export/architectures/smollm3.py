"""SmolLM3: a Llama some of whose layers do not rotate."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture
from ortolan_export.architectures.windows import by_layer_types
from ortolan_export.config import Config


def _rotates(config: Config) -> tuple[bool, ...]:
    layers = config.count("num_hidden_layers")
    if not config.has("no_rope_layers"):
        period = config.count("no_rope_layer_interval")
        return tuple((layer + 1) % period != 0 for layer in range(layers))
    flags = config.numbers("no_rope_layers")  # 1 where a layer rotates, against the name
    if len(flags) < layers:
        raise config.wrong("no_rope_layers", f"must hold {layers} values", list(flags))
    return tuple(flag != 0 for flag in flags[:layers])


def _windows(config: Config) -> tuple[int, ...]:
    rotates = _rotates(config)
    windows = by_layer_types(config, lambda layer: not rotates[layer])
    return windows if config.flag("use_sliding_window") else (0,) * len(windows)


SMOLLM3 = Architecture(
    model_type="smollm3",
    defaults={
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "no_rope_layer_interval": 4,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 2000000.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    rotates=_rotates,
    windows=_windows,
)
