"""What GGUF calls the modules and settings of each family, and what a config.json calls them.

GGUF leaves out what llama.cpp knows of a family by heart; it stands here with the family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ortolan_export.errors import SourceError, UnsupportedModel

Fields = dict[str, Any]

ROPE_DIVISORS = "rope_freqs.weight"
LONG_DIVISORS, SHORT_DIVISORS = "rope_factors_long.weight", "rope_factors_short.weight"

_ORIGINAL = "original_max_position_embeddings"

_OUTER_MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SANDWICH_MODULES = {
    **_LAYER_MODULES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Settings that change what a model computes, and that no family here has.
_FOREIGN = ("attention.temperature_scale", "expert_count", "rope.scaling.yarn_log_multiplier")
# Layers of the two models that scale attention by the width of the residual stream a head gets.
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62


class Metadata(msgspec.Struct, frozen=True):
    """The metadata of a GGUF file, those of its architecture by their last names."""

    path: Path
    fields: Mapping[str, Any]
    architecture: str

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Return a value of the architecture."""
        return self.fields.get(f"{self.architecture}.{name}", otherwise)

    def number(self, name: str, otherwise: float | None = None) -> Any:
        """Return a number > 0. Raises SourceError."""
        value = self.get(name, otherwise)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self._wrong(name, "must be a number > 0", value)
        return value

    def count(self, name: str, otherwise: int | None = None) -> int:
        """Return a whole number >= 1. Raises SourceError."""
        value = self.get(name, otherwise)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong(name, "must be a whole number >= 1", value)
        return value

    def _wrong(self, name: str, requirement: str, value: object) -> SourceError:
        return SourceError(f"{self.path}: {self.architecture}.{name} {requirement}, got {value!r}")


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One of GGUF's architectures.

    ``settings`` returns the config.json's fields that only this family has, given those that all
    have. ``is_permuted`` says that the rows of Q and K are in llama.cpp's order of rotation;
    ``norm_offset`` is what the file's gains of norms hold beyond those of a checkpoint.
    """

    model_type: str
    modules: Mapping[str, str]
    settings: Callable[[Metadata, Fields], Fields]
    is_permuted: bool = False
    norm_offset: float = 0.0

    def module(self, name: str) -> str | None:
        """Return our name of a module, None for one that the family has not."""
        if name in _OUTER_MODULES:
            return _OUTER_MODULES[name]
        block, _, rest = name.partition(".")
        layer, _, inner = rest.partition(".")
        known = self.modules.get(inner) if block == "blk" else None
        return None if known is None else f"model.layers.{layer}.{known}"


def find_family(metadata: Metadata) -> Family:
    """Return the family of a file. Raises UnsupportedModel."""
    family = FAMILIES.get(metadata.architecture)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedModel(
            f"{metadata.path}: general.architecture must be one of {known}, "
            f"got {metadata.architecture!r}; this architecture is not supported"
        )
    return family


def read_config(
    family: Family, metadata: Metadata, *, vocab_size: int, is_tied: bool, divisors: Fields
) -> Fields:
    """Return a file's settings as a config.json would have them.

    ``divisors`` are the lists of rotary divisors that the file holds as tensors, by their names.
    Raises SourceError, UnsupportedModel.
    """
    _refuse_foreign(metadata)
    heads, hidden_size = (
        metadata.count("attention.head_count"),
        metadata.count("embedding_length"),
    )
    config = {
        "model_type": family.model_type,
        "hidden_size": hidden_size,
        "intermediate_size": metadata.count("feed_forward_length"),
        "num_hidden_layers": metadata.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.count("attention.head_count_kv", heads),
        "head_dim": metadata.count("attention.key_length", hidden_size // heads),
        "vocab_size": vocab_size,
        "max_position_embeddings": metadata.count("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": is_tied,
        "rope_parameters": _rope_parameters(metadata, divisors),
    }
    config |= family.settings(metadata, config)
    _refuse_odd_rotation(metadata, config)
    return config


def _none(metadata: Metadata, config: Fields) -> Fields:
    return {}


def _phi3(metadata: Metadata, config: Fields) -> Fields:
    rotated = metadata.number("rope.dimension_count", config["head_dim"])
    settings = {
        "partial_rotary_factor": rotated / config["head_dim"],
        "sliding_window": metadata.get("attention.sliding_window") or None,
    }
    original = metadata.get("rope.scaling.original_context_length")
    return settings if original is None else {**settings, _ORIGINAL: original}


def _gemma(metadata: Metadata, config: Fields) -> Fields:
    return {"hidden_act": "gelu_pytorch_tanh"}


def _gemma2(metadata: Metadata, config: Fields) -> Fields:
    return {
        "query_pre_attn_scalar": _query_scalar(metadata, config, _GEMMA2_27B_LAYERS),
        "attn_logit_softcapping": metadata.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.get("final_logit_softcapping", 30.0),
        "sliding_window": metadata.number("attention.sliding_window", 4096),
    }


def _gemma3(metadata: Metadata, config: Fields) -> Fields:
    local = {"rope_theta": metadata.number("rope.freq_base_swa", 10000.0)}
    everywhere = {"rope_theta": 1000000.0, **config["rope_parameters"]}
    return {
        "query_pre_attn_scalar": _query_scalar(metadata, config, _GEMMA3_27B_LAYERS),
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "sliding_window": metadata.get("attention.sliding_window"),
        "sliding_window_pattern": metadata.get("attention.sliding_window_pattern", 6),
        "rope_parameters": {"full_attention": everywhere, "sliding_attention": local},
    }


def _query_scalar(metadata: Metadata, config: Fields, layers_of_27b: int) -> float:
    if metadata.get("attention.scale"):
        return float(metadata.number("attention.scale") ** -2)
    if config["num_hidden_layers"] == layers_of_27b:
        return float(config["hidden_size"] / config["num_attention_heads"])
    return float(config["head_dim"])


def _rope_parameters(metadata: Metadata, divisors: Fields) -> Fields:
    parameters: Fields = {}
    if metadata.get("rope.freq_base") is not None:
        parameters["rope_theta"] = metadata.number("rope.freq_base")
    if ROPE_DIVISORS in divisors:
        return {**parameters, "rope_type": "divisors", "divisors": divisors[ROPE_DIVISORS]}
    if LONG_DIVISORS in divisors:
        return {**parameters, **_longrope(metadata, divisors)}
    kind = metadata.get("rope.scaling.type", "none")
    if kind == "none":
        return parameters
    if metadata.get("rope.scaling.attn_factor", 1.0) != 1.0:
        raise UnsupportedModel(
            f"{metadata.path}: {metadata.architecture}.rope.scaling.attn_factor must be 1.0, "
            f"got {metadata.get('rope.scaling.attn_factor')}"
        )
    parameters |= {"rope_type": kind, "factor": metadata.number("rope.scaling.factor")}
    more = {
        _ORIGINAL: metadata.get("rope.scaling.original_context_length"),
        "beta_fast": metadata.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": metadata.get("rope.scaling.yarn_beta_slow"),
    }
    return {**parameters, **{name: value for name, value in more.items() if value is not None}}


def _longrope(metadata: Metadata, divisors: Fields) -> Fields:
    parameters: Fields = {
        "rope_type": "longrope",
        "long_factor": divisors[LONG_DIVISORS],
        "short_factor": divisors.get(SHORT_DIVISORS),
    }
    factor = metadata.get("rope.scaling.attn_factor")
    return parameters if factor is None else {**parameters, "attention_factor": factor}


def _refuse_foreign(metadata: Metadata) -> None:
    for name in _FOREIGN:
        if metadata.get(name):
            raise UnsupportedModel(
                f"{metadata.path}: {metadata.architecture}.{name} must be 0 or absent, "
                f"got {metadata.get(name)}; this variant is not supported"
            )


def _refuse_odd_rotation(metadata: Metadata, config: Fields) -> None:
    rotated = metadata.get("rope.dimension_count", config["head_dim"])
    if rotated != config["head_dim"] and "partial_rotary_factor" not in config:
        raise UnsupportedModel(
            f"{metadata.path}: {metadata.architecture}.rope.dimension_count must be the size of a "
            f"head, {config['head_dim']}, got {rotated}"
        )


FAMILIES: Mapping[str, Family] = {
    # Mistral, too, calls itself a llama.
    "llama": Family(model_type="llama", modules=_LAYER_MODULES, settings=_none, is_permuted=True),
    "qwen2": Family(model_type="qwen2", modules=_LAYER_MODULES, settings=_none),
    "qwen3": Family(model_type="qwen3", modules=_LAYER_MODULES, settings=_none),
    "phi3": Family(
        model_type="phi3",
        modules={
            **_LAYER_MODULES,
            "attn_qkv": "self_attn.qkv_proj",
            "ffn_up": "mlp.gate_up_proj",
        },
        settings=_phi3,
    ),
    "gemma": Family(model_type="gemma", modules=_LAYER_MODULES, settings=_gemma, norm_offset=1.0),
    "gemma2": Family(
        model_type="gemma2", modules=_SANDWICH_MODULES, settings=_gemma2, norm_offset=1.0
    ),
    "gemma3": Family(
        model_type="gemma3_text", modules=_SANDWICH_MODULES, settings=_gemma3, norm_offset=1.0
    ),
}
