"""What describes a family of decoders (Architecture) and one model of it (Decoder)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from ortolan_export.config import Config
from ortolan_export.rope import Rope

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


class WeightNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names of a family's modules; ``.weight`` and ``.bias`` follow, ``layer`` goes before."""

    embedding: str = "model.embed_tokens"
    head: str = "lm_head"
    last_norm: str = "model.norm"
    layer: str = "model.layers.{layer}."
    attention_norm: str = "input_layernorm"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    attention_output: str = "self_attn.o_proj"
    mlp_norm: str = "post_attention_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"


def no_windows(config: Config) -> tuple[int, ...]:
    """Return 0 (attend to everything before) for every layer."""
    return (0,) * config.count("num_hidden_layers")


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A family of decoders, named by the ``model_type`` of its config.json.

    ``defaults`` are the values of fields that a config.json may leave out. ``windows`` gives the
    width of each layer's sliding window in tokens, 0 for none. Biases need no entry: a linear layer
    has one when the checkpoint has it. ``ignored`` are endings of tensor names that carry nothing.
    """

    model_type: str
    defaults: Mapping[str, Any]
    names: WeightNames = WeightNames()
    has_qk_norm: bool = False
    windows: Callable[[Config], tuple[int, ...]] = no_windows
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """One model: everything about it that is not a weight. Sizes are in elements."""

    architecture: Architecture
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    activation: Activation
    is_tied: bool
    windows: tuple[int, ...]
    rope: Rope

    @property
    def names(self) -> WeightNames:
        """Return the names of the family's modules."""
        return self.architecture.names

    def module(self, layer: int, name: str) -> str:
        """Return the full name of a module of one layer."""
        return self.names.layer.format(layer=layer) + name
