"""What describes a family of decoders (Architecture) and one model of it (Decoder)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from ortolan_export.config import Config
from ortolan_export.rope import Rope

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
Norm = Literal["rms", "layer"]

ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "silu": "silu",
        "swish": "silu",
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
    }
)


class WeightNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names of a family's modules; ``.weight`` and ``.bias`` follow, ``layer`` goes before.

    None stands for a module that the family has not: without ``attention_norm`` and ``mlp_norm``
    attention and MLP read the residual stream as it is; ``attention_post_norm`` and
    ``mlp_post_norm`` act on what they write to it. Without ``gate`` the MLP is up, activation,
    down. ``qkv`` and ``gate_up`` hold several layers packed, which ``query`` and so on then name.
    ``sinks`` is one logit a head that every token may attend to. With a ``router`` the MLP is made
    of experts, each with modules of its own or, stacked, with its ``[in, out]`` in one tensor.
    """

    embedding: str = "model.embed_tokens"
    positions: str | None = None
    head: str = "lm_head"
    last_norm: str = "model.norm"
    layer: str = "model.layers.{layer}."
    attention_norm: str | None = "input_layernorm"
    qkv: str | None = None
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    attention_output: str = "self_attn.o_proj"
    attention_post_norm: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    gate_up: str | None = None
    gate: str | None = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    mlp_post_norm: str | None = None
    sinks: str | None = None
    router: str | None = None
    expert_gate: str = "mlp.experts.{expert}.gate_proj"
    expert_up: str = "mlp.experts.{expert}.up_proj"
    expert_down: str = "mlp.experts.{expert}.down_proj"
    stacked_gate_up: str | None = None
    stacked_down: str | None = None

    def without(self, prefix: str) -> WeightNames:
        """Return the names as they are in a checkpoint that leaves ``prefix`` out."""
        ours = msgspec.structs.asdict(self)
        return WeightNames(**{k: v and v.removeprefix(prefix) for k, v in ours.items()})


class Scales(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on the way through a decoder; a soft-cap ``c`` turns x into c tanh(x / c), 0 is none.

    ``residual`` multiplies what attention and MLP write to the residual stream.
    """

    attention: float
    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0


class Mixture(msgspec.Struct, frozen=True, kw_only=True):
    """An MLP of experts, of which each token takes the ``per_token`` that its router likes best.

    An expert computes silu(gate) times up. With a limit the gate is at most that, up within it, and
    the product is gate sigmoid(``alpha`` gate) (up + ``beta``). The router's weights of the chosen
    experts sum to 1 where ``is_normalised``.
    """

    experts: int
    per_token: int
    inner_size: int
    is_normalised: bool = True
    alpha: float = 1.0
    beta: float = 0.0
    limit: float | None = None


def no_mixture(config: Config) -> Mixture | None:
    """Return None: every MLP is one."""
    return None


def no_windows(config: Config) -> tuple[int, ...]:
    """Return 0 (attend to everything before) for every layer."""
    return (0,) * config.count("num_hidden_layers")


def every_layer_rotates(config: Config) -> tuple[bool, ...]:
    """Return true for every layer."""
    return (True,) * config.count("num_hidden_layers")


def plain_scales(config: Config, head_size: int) -> Scales:
    """Return the scale of attention as it was first published, and nothing else."""
    return Scales(attention=head_size**-0.5)


def as_it_is(architecture: Architecture, config: Config) -> Architecture:
    """Return a family that has no variants."""
    return architecture


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A family of decoders, named by the ``model_type`` of its config.json.

    Fields of a config.json go by their names in Llama's; ``fields`` gives the family's own names
    where they differ. ``defaults`` are the values of fields that may be left out; a family without
    a default for ``partial_rotary_factor`` always rotates whole heads. ``only`` are fields that
    must have one value, because no other is supported. ``ignored`` are endings of tensor names that
    carry nothing.

    ``norm_offset`` is added to the gain of each RMS norm. Q and K have norms of their own per
    ``head`` or across all heads (``full``). A packed QKV holds all of Q, then K, then V
    (``is_grouped`` false), or for each KV head its queries, its key and its value. Rotation pairs a
    value with the one half a head away, or with its neighbour. ``is_transposed`` linear layers lie
    as ``[in, out]``. A learned position p is at row p + ``position_offset`` of its table. In a
    parallel layer the MLP reads what attention reads, or, where ``mlp_norm`` has a name, that norm
    of the same residual.

    ``windows`` gives the width of each layer's sliding window in tokens, 0 for none; ``rotates``
    which layers rotate; ``local_rope_field`` names the field with the rotary base of windowed
    layers, which then have no scaling; ``variant`` returns what one configuration makes of the
    family. Biases need no entry: a module has one when the checkpoint has it.
    """

    model_type: str
    defaults: Mapping[str, Any]
    fields: Mapping[str, str] = {}
    only: Mapping[str, Any] = {}
    names: WeightNames = WeightNames()
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)
    norm: Norm = "rms"
    norm_offset: float = 0.0
    qk_norm: Literal["none", "head", "full"] = "none"
    is_grouped: bool = False
    is_transposed: bool = False
    is_parallel: bool = False
    rotary_pairs: Literal["halves", "neighbours"] = "halves"
    position_offset: int = 0
    local_rope_field: str | None = None
    activations: Mapping[str, Activation] = ACTIVATIONS
    windows: Callable[[Config], tuple[int, ...]] = no_windows
    rotates: Callable[[Config], tuple[bool, ...]] = every_layer_rotates
    scales: Callable[[Config, int], Scales] = plain_scales
    mixture: Callable[[Config], Mixture | None] = no_mixture
    variant: Callable[[Architecture, Config], Architecture] = as_it_is


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """One model: everything about it that is not a weight. Sizes are in elements.

    ``ropes`` holds None for a layer that does not rotate.
    """

    architecture: Architecture
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    max_positions: int
    context_length: int
    norm_epsilon: float
    activation: Activation
    is_tied: bool
    windows: tuple[int, ...]
    ropes: tuple[Rope | None, ...]
    scales: Scales
    mixture: Mixture | None

    @property
    def names(self) -> WeightNames:
        """Return the names of the family's modules."""
        return self.architecture.names

    def module(self, layer: int, name: str) -> str:
        """Return the full name of a module of one layer."""
        return self.names.layer.format(layer=layer) + name

    @property
    def can_be_rotated(self) -> bool:
        """Return whether an orthogonal matrix may turn the residual stream and change nothing.

        So it is where nothing but linear layers behind RMS norms reads it, and nothing but linear
        layers and the embedding writes it.
        """
        names, is_parallel = self.names, self.architecture.is_parallel
        has_mlp_norm = names.mlp_norm is not None or is_parallel
        has_norms = self.architecture.norm == "rms" and names.attention_norm and has_mlp_norm
        others = (names.attention_post_norm, names.mlp_post_norm, names.positions, names.router)
        return bool(has_norms) and not any(others)
