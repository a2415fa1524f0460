"""OLMo 2 and 3: norms after attention and MLP instead of before, and across all of Q and K."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture, WeightNames
from ortolan_export.architectures.windows import all_but_each

_DEFAULTS = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_NAMES = WeightNames(
    attention_norm=None,
    attention_post_norm="post_attention_layernorm",
    mlp_norm=None,
    mlp_post_norm="post_feedforward_layernorm",
)

OLMO2 = Architecture(model_type="olmo2", defaults=_DEFAULTS, names=_NAMES, qk_norm="full")
OLMO3 = Architecture(
    model_type="olmo3",
    defaults={**_DEFAULTS, "rope_theta": 500000.0, "sliding_window": 4096},
    names=_NAMES,
    qk_norm="full",
    local_rope_field="rope_theta",
    windows=all_but_each(4),
)
