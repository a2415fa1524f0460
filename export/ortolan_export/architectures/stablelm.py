"""StableLM: a Llama with layer norms, heads rotated in part, and maybe parallel layers."""

from __future__ import annotations

import msgspec

from ortolan_export.architectures.family import Architecture
from ortolan_export.config import Config


def _variant(architecture: Architecture, config: Config) -> Architecture:
    if not config.flag("use_parallel_residual"):
        return architecture
    names = msgspec.structs.replace(architecture.names, mlp_norm=None)
    return msgspec.structs.replace(architecture, is_parallel=True, names=names)


STABLELM = Architecture(
    model_type="stablelm",
    defaults={
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "num_key_value_heads": 32,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    fields={"rms_norm_eps": "layer_norm_eps"},
    only={"qk_layernorm": False},
    norm="layer",
    variant=_variant,
)
