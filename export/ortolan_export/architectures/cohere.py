"""Command R: parallel layers behind one layer norm, neighbours rotated, logits scaled."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture, Scales, WeightNames
from ortolan_export.architectures.windows import all_but_each
from ortolan_export.config import Config

_DEFAULTS = {
    "hidden_act": "silu",
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
_FIELDS = {"rms_norm_eps": "layer_norm_eps"}
_NAMES = WeightNames(mlp_norm=None)


def _scales(config: Config, head_size: int) -> Scales:
    return Scales(attention=head_size**-0.5, logits=config.positive("logit_scale"))


def _rotates(config: Config) -> tuple[bool, ...]:
    return tuple(width > 0 for width in _windows(config))


_windows = all_but_each(4)

COHERE = Architecture(
    model_type="cohere",
    defaults={**_DEFAULTS, "rope_theta": 500000.0},
    fields=_FIELDS,
    only={"use_qk_norm": False},
    names=_NAMES,
    norm="layer",
    is_parallel=True,
    rotary_pairs="neighbours",
    scales=_scales,
)
COHERE2 = Architecture(
    model_type="cohere2",
    defaults={**_DEFAULTS, "rope_theta": 10000.0, "sliding_window": 4096},
    fields=_FIELDS,
    names=_NAMES,
    norm="layer",
    is_parallel=True,
    rotary_pairs="neighbours",
    windows=_windows,
    rotates=_rotates,
    scales=_scales,
)
