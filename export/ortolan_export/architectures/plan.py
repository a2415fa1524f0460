"""Turns a configuration into a Decoder and checks it against the checkpoint's tensors.

Everything that can be refused is refused here, before a single weight is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ortolan_export.architectures.family import Activation, Architecture, Decoder
from ortolan_export.architectures.registry import find_architecture
from ortolan_export.config import Config
from ortolan_export.errors import ExportError, SourceError, UnsupportedModel
from ortolan_export.rope import read_rope

Shapes = Mapping[str, tuple[int, ...]]

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}

# The rotation inside GroupQueryAttention works on blocks of 8 pairs.
_HEAD_SIZE_STEP = 16


def plan_decoder(
    fields: Mapping[str, Any], shapes: Shapes, context_length: int | None = None
) -> Decoder:
    """Return the model that a config.json and the shapes of its tensors describe.

    ``context_length`` is the length asked for, None for the model's own. Raises SourceError and
    UnsupportedModel with the field or tensor that is missing, wrong or not known.
    """
    architecture = find_architecture(fields)
    config = Config(fields, defaults=architecture.defaults)
    if config.has("quantization_config"):
        raise UnsupportedModel(
            "config.json: quantization_config is not supported; "
            "export the checkpoint before it was quantised"
        )
    decoder = _read_decoder(architecture, config, shapes, context_length)
    _check_tensors(decoder, shapes)
    return decoder


def _read_decoder(
    architecture: Architecture, config: Config, shapes: Shapes, context_length: int | None
) -> Decoder:
    heads, hidden_size = config.count("num_attention_heads"), config.count("hidden_size")
    head_size = _head_size(config, hidden_size, heads)
    max_positions = config.count("max_position_embeddings")
    rope = read_rope(
        config, dim=head_size, max_positions=max_positions, context_length=context_length
    )
    length = _context_length(context_length, max_positions, rope.reach)
    head_weight = f"{architecture.names.head}.weight"
    return Decoder(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=config.count("intermediate_size"),
        layers=config.count("num_hidden_layers"),
        heads=heads,
        kv_heads=_kv_heads(config, heads),
        head_size=head_size,
        vocab_size=config.count("vocab_size"),
        context_length=length,
        norm_epsilon=config.positive("rms_norm_eps"),
        activation=_activation(config),
        is_tied=config.flag("tie_word_embeddings") or head_weight not in shapes,
        # A window as long as the context hides nothing.
        windows=tuple(w if w < length else 0 for w in architecture.windows(config)),
        rope=rope,
    )


def _head_size(config: Config, hidden_size: int, heads: int) -> int:
    if not config.has("head_dim") and hidden_size % heads:
        raise config.wrong("hidden_size", f"must be a multiple of {heads} heads", hidden_size)
    head_size = config.count("head_dim", otherwise=hidden_size // heads)
    if head_size % _HEAD_SIZE_STEP:
        raise UnsupportedModel(
            f"config.json: the size of a head must be a multiple of {_HEAD_SIZE_STEP}, "
            f"got {head_size}"
        )
    return head_size


def _kv_heads(config: Config, heads: int) -> int:
    kv_heads = config.count("num_key_value_heads", otherwise=heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"must divide {heads} heads", kv_heads)
    return kv_heads


def _activation(config: Config) -> Activation:
    name = config.text("hidden_act")
    if name not in _ACTIVATIONS:
        known = ", ".join(sorted(_ACTIVATIONS))
        raise UnsupportedModel(f"config.json: hidden_act must be one of {known}, got {name!r}")
    return _ACTIVATIONS[name]


def _context_length(asked: int | None, max_positions: int, reach: int) -> int:
    if asked is None:
        return max_positions
    if not 2 <= asked <= reach:
        raise ExportError(f"--context-length must be within 2..{reach} for this model, got {asked}")
    return asked


def _check_tensors(decoder: Decoder, shapes: Shapes) -> None:
    expected = dict(_required(decoder))
    optional = dict(_optional(decoder))
    for name, shape in expected.items():
        if name not in shapes:
            raise SourceError(f"the checkpoint has no tensor {name}; it is incomplete")
        _check_shape(name, shapes[name], shape)
    for name, shape in shapes.items():
        if name in optional:
            _check_shape(name, shape, optional[name])
        elif name not in expected and not name.endswith(decoder.architecture.ignored):
            model_type = decoder.architecture.model_type
            raise UnsupportedModel(
                f"tensor {name} is no part of a {model_type} that is known; "
                "this variant is not supported"
            )


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise SourceError(f"tensor {name} must have shape {list(expected)}, got {list(shape)}")


def _required(decoder: Decoder) -> Iterator[tuple[str, tuple[int, ...]]]:
    names, hidden = decoder.names, decoder.hidden_size
    yield f"{names.embedding}.weight", (decoder.vocab_size, hidden)
    if not decoder.is_tied:
        yield f"{names.head}.weight", (decoder.vocab_size, hidden)
    yield f"{names.last_norm}.weight", (hidden,)
    for layer in range(decoder.layers):
        for name in (names.attention_norm, names.mlp_norm):
            yield f"{decoder.module(layer, name)}.weight", (hidden,)
        for name, shape in _linears(decoder):
            yield f"{decoder.module(layer, name)}.weight", shape
        if decoder.architecture.has_qk_norm:
            for name in (names.query_norm, names.key_norm):
                yield f"{decoder.module(layer, name)}.weight", (decoder.head_size,)


def _optional(decoder: Decoder) -> Iterator[tuple[str, tuple[int, ...]]]:
    names = decoder.names
    if decoder.is_tied:  # some checkpoints hold the tied head a second time
        yield f"{names.head}.weight", (decoder.vocab_size, decoder.hidden_size)
    for layer in range(decoder.layers):
        for name, shape in _linears(decoder):
            yield f"{decoder.module(layer, name)}.bias", shape[:1]


def _linears(decoder: Decoder) -> tuple[tuple[str, tuple[int, int]], ...]:
    names, hidden, inner = decoder.names, decoder.hidden_size, decoder.intermediate_size
    wide, narrow = decoder.heads * decoder.head_size, decoder.kv_heads * decoder.head_size
    return (
        (names.query, (wide, hidden)),
        (names.key, (narrow, hidden)),
        (names.value, (narrow, hidden)),
        (names.attention_output, (hidden, wide)),
        (names.gate, (inner, hidden)),
        (names.up, (inner, hidden)),
        (names.down, (hidden, inner)),
    )
