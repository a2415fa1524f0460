"""Turns a configuration into a Decoder and checks it against the checkpoint's tensors.

Everything that can be refused is refused here, before a single weight is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from ortolan_export.architectures.arrangement import norm_modules
from ortolan_export.architectures.family import Activation, Architecture, Decoder, Mixture
from ortolan_export.architectures.registry import find_architecture
from ortolan_export.config import Config
from ortolan_export.errors import ExportError, SourceError, UnsupportedModel
from ortolan_export.rope import FULL, SLIDING, Rope, read_ropes
from ortolan_export.source import Checkpoint
from ortolan_export.verify import LEAST_CONTEXT

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

# The rotation inside GroupQueryAttention works on blocks of 8 pairs.
_HEAD_SIZE_STEP = 16


def plan_decoder(checkpoint: Checkpoint, context_length: int | None = None) -> Decoder:
    """Return the model that a config.json and the shapes of its tensors describe.

    ``context_length`` is the length asked for, None for the model's own. Raises SourceError and
    UnsupportedModel with the field or tensor that is missing, wrong or not known.
    """
    family = find_architecture(Config(checkpoint.config, origin=checkpoint.origin))
    family = family.variant(family, _config(checkpoint, family))
    config = _config(checkpoint, family)
    _refuse_options(family, config)
    _check_layers(config, checkpoint)
    decoder = _read_decoder(_named_as(family, checkpoint.shapes), config, context_length)
    _check_tensors(decoder, checkpoint)
    return decoder


def _config(checkpoint: Checkpoint, family: Architecture) -> Config:
    return Config(
        checkpoint.config,
        defaults=family.defaults,
        names=family.fields,
        origin=checkpoint.origin,
    )


def _refuse_options(family: Architecture, config: Config) -> None:
    if config.has("quantization_config"):
        raise UnsupportedModel(
            f"{config.origin}: quantization_config is not supported; "
            "export the checkpoint before it was quantised"
        )
    for field, value in family.only.items():
        if config.has(field) and config.get(field) != value:
            raise UnsupportedModel(
                f"{config.origin}: {field} must be {value!r} for {family.model_type}, "
                f"got {config.get(field)!r}; this variant is not supported"
            )


def _check_layers(config: Config, checkpoint: Checkpoint) -> None:
    """Raise SourceError for more layers than tensors, before each layer is looked at."""
    layers, tensors = config.count("num_hidden_layers"), len(checkpoint.shapes)
    if layers > tensors:
        requirement = f"must be at most {tensors}, the number of the checkpoint's tensors"
        raise config.wrong("num_hidden_layers", requirement, layers)


def _named_as(family: Architecture, shapes: Shapes) -> Architecture:
    """Return the family with the names that the checkpoint uses, with or without a first part."""
    name = f"{family.names.embedding}.weight"
    prefix = name.partition(".")[0] + "."
    if name in shapes or name.removeprefix(prefix) not in shapes:
        return family
    return msgspec.structs.replace(family, names=family.names.without(prefix))


def _read_decoder(family: Architecture, config: Config, context_length: int | None) -> Decoder:
    heads, hidden_size = config.count("num_attention_heads"), config.count("hidden_size")
    head_size = _head_size(config, hidden_size, heads)
    windows = family.windows(config)
    ropes = _ropes(family, config, windows, head_size, context_length)
    max_positions = config.count("max_position_embeddings", least=LEAST_CONTEXT)
    length = _context_length(context_length, max_positions, ropes)
    return Decoder(
        architecture=family,
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(family, config, hidden_size),
        layers=config.count("num_hidden_layers"),
        heads=heads,
        kv_heads=_kv_heads(config, heads),
        head_size=head_size,
        vocab_size=config.count("vocab_size"),
        max_positions=max_positions,
        context_length=length,
        norm_epsilon=config.positive("rms_norm_eps"),
        activation=_activation(family, config),
        is_tied=config.flag("tie_word_embeddings"),
        # A window as long as the context hides nothing.
        windows=tuple(width if width < length else 0 for width in windows),
        ropes=ropes,
        scales=family.scales(config, head_size),
        mixture=_mixture(family, config),
    )


def _ropes(
    family: Architecture,
    config: Config,
    windows: tuple[int, ...],
    head_size: int,
    context_length: int | None,
) -> tuple[Rope | None, ...]:
    if family.names.positions is not None:
        return (None,) * len(windows)
    kinds = [
        (SLIDING if width else FULL) if rotates else None
        for width, rotates in zip(windows, family.rotates(config), strict=True)
    ]
    return read_ropes(
        config,
        kinds,
        head_size=head_size,
        local_field=family.local_rope_field,
        max_positions=config.count("max_position_embeddings"),
        context_length=context_length,
    )


def _intermediate_size(family: Architecture, config: Config, hidden_size: int) -> int:
    # Families whose MLP has no gate leave the field out, or null, for four times the width.
    otherwise = 4 * hidden_size if family.names.gate is None else None
    return config.count("intermediate_size", otherwise=otherwise)


def _head_size(config: Config, hidden_size: int, heads: int) -> int:
    if not config.has("head_dim") and hidden_size % heads:
        raise config.wrong("hidden_size", f"must be a multiple of {heads} heads", hidden_size)
    head_size = config.count("head_dim", otherwise=hidden_size // heads)
    if head_size % _HEAD_SIZE_STEP:
        raise UnsupportedModel(
            f"{config.origin}: the size of a head must be a multiple of {_HEAD_SIZE_STEP}, "
            f"got {head_size}"
        )
    return head_size


def _kv_heads(config: Config, heads: int) -> int:
    kv_heads = config.count("num_key_value_heads", otherwise=heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"must divide {heads} heads", kv_heads)
    return kv_heads


def _mixture(family: Architecture, config: Config) -> Mixture | None:
    mixture = family.mixture(config)
    if mixture is not None and mixture.per_token > mixture.experts:
        requirement = f"must be at most {mixture.experts}, the number of experts"
        raise config.wrong("num_experts_per_tok", requirement, mixture.per_token)
    return mixture


def _activation(family: Architecture, config: Config) -> Activation:
    name = config.text("hidden_act")
    if name not in family.activations:
        known = ", ".join(sorted(family.activations))
        field = config.names.get("hidden_act", "hidden_act")
        raise UnsupportedModel(f"{config.origin}: {field} must be one of {known}, got {name!r}")
    return family.activations[name]


def _context_length(asked: int | None, max_positions: int, ropes: tuple[Rope | None, ...]) -> int:
    if asked is None:
        return max_positions
    reach = min((rope.reach for rope in ropes if rope is not None), default=max_positions)
    if not LEAST_CONTEXT <= asked <= reach:
        raise ExportError(
            f"--context-length must be within {LEAST_CONTEXT}..{reach} for this model, got {asked}"
        )
    return asked


def _check_tensors(decoder: Decoder, checkpoint: Checkpoint) -> None:
    family, shapes = decoder.architecture, checkpoint.shapes
    for name, problem in checkpoint.unreadable.items():
        if not name.endswith(family.ignored):
            raise UnsupportedModel(problem)
    expected: dict[str, Shape] = {}
    for name, shape in _required(decoder):
        if name not in shapes:
            raise _missing(name, decoder)
        _check_shape(name, shapes[name], shape)
        expected[name] = shape
    optional = dict(_optional(decoder))
    for name, shape in shapes.items():
        if name in optional:
            _check_shape(name, shape, optional[name])
        elif name not in expected and not name.endswith(family.ignored):
            raise UnsupportedModel(
                f"tensor {name} is no part of a {family.model_type} that is known; "
                "this variant is not supported"
            )


def _missing(name: str, decoder: Decoder) -> SourceError:
    if name == f"{decoder.names.head}.weight":
        return SourceError(
            f"the checkpoint has no tensor {name}, though tie_word_embeddings is false; where the "
            "head is the embedding, set tie_word_embeddings to true in config.json"
        )
    return SourceError(f"the checkpoint has no tensor {name}; it is incomplete, download it again")


def _check_shape(name: str, shape: Shape, expected: Shape) -> None:
    if shape != expected:
        raise SourceError(
            f"tensor {name} must have shape {list(expected)}, got {list(shape)}; "
            "take config and weights of one model"
        )


def _required(decoder: Decoder) -> Iterator[tuple[str, Shape]]:
    names, hidden = decoder.names, decoder.hidden_size
    yield f"{names.embedding}.weight", (decoder.vocab_size, hidden)
    if names.positions is not None:
        rows = decoder.max_positions + decoder.architecture.position_offset
        yield f"{names.positions}.weight", (rows, hidden)
    if not decoder.is_tied:
        yield f"{names.head}.weight", (decoder.vocab_size, hidden)
    for module in norm_modules(decoder):
        yield f"{module}.weight", (_norm_width(decoder, module),)
    for module, shape in _linears(decoder):
        is_transposed = decoder.architecture.is_transposed
        yield f"{module}.weight", shape[::-1] if is_transposed else shape
    for layer in range(decoder.layers):
        if names.sinks is not None:
            yield decoder.module(layer, names.sinks), (decoder.heads,)
        for name, tensor_shape in _expert_tensors(decoder):
            yield decoder.module(layer, name), tensor_shape


def _optional(decoder: Decoder) -> Iterator[tuple[str, Shape]]:
    names, vocab_size = decoder.names, decoder.vocab_size
    if decoder.is_tied:  # some checkpoints hold the tied head a second time
        yield f"{names.head}.weight", (vocab_size, decoder.hidden_size)
    else:
        yield f"{names.head}.bias", (vocab_size,)
    if decoder.architecture.norm == "layer":
        for module in norm_modules(decoder):
            yield f"{module}.bias", (decoder.hidden_size,)
    for module, shape in _linears(decoder):
        yield f"{module}.bias", shape[:1]
    if decoder.mixture is not None and names.router is not None:
        for layer in range(decoder.layers):
            yield f"{decoder.module(layer, names.router)}.bias", (decoder.mixture.experts,)


def _norm_width(decoder: Decoder, module: str) -> int:
    names, qk_norm = decoder.names, decoder.architecture.qk_norm
    if not module.endswith((names.query_norm, names.key_norm)):
        return decoder.hidden_size
    heads = decoder.heads if module.endswith(names.query_norm) else decoder.kv_heads
    return decoder.head_size * (heads if qk_norm == "full" else 1)


def _linears(decoder: Decoder) -> Iterator[tuple[str, tuple[int, int]]]:
    """Give the linear modules that the checkpoint holds, with their shapes ``[out, in]``."""
    for layer in range(decoder.layers):
        for name, shape in _layer_linears(decoder):
            yield decoder.module(layer, name), shape


def _layer_linears(decoder: Decoder) -> Iterator[tuple[str, tuple[int, int]]]:
    names, hidden, inner = decoder.names, decoder.hidden_size, decoder.intermediate_size
    wide, narrow = decoder.heads * decoder.head_size, decoder.kv_heads * decoder.head_size
    if names.qkv is not None:
        yield names.qkv, (wide + 2 * narrow, hidden)
    else:
        yield names.query, (wide, hidden)
        yield names.key, (narrow, hidden)
        yield names.value, (narrow, hidden)
    yield names.attention_output, (hidden, wide)
    if decoder.mixture is not None:
        return
    if names.gate_up is not None:
        yield names.gate_up, (2 * inner, hidden)
    else:
        yield names.up, (inner, hidden)
        if names.gate is not None:
            yield names.gate, (inner, hidden)
    yield names.down, (hidden, inner)


def _expert_tensors(decoder: Decoder) -> Iterator[tuple[str, Shape]]:
    """Give the tensors of a layer's router and experts, their names without the layer's."""
    names, mixture, hidden = decoder.names, decoder.mixture, decoder.hidden_size
    if mixture is None:
        return
    yield f"{names.router}.weight", (mixture.experts, hidden)
    if names.stacked_gate_up is not None and names.stacked_down is not None:
        yield names.stacked_gate_up, (mixture.experts, hidden, 2 * mixture.inner_size)
        yield f"{names.stacked_gate_up}_bias", (mixture.experts, 2 * mixture.inner_size)
        yield names.stacked_down, (mixture.experts, mixture.inner_size, hidden)
        yield f"{names.stacked_down}_bias", (mixture.experts, hidden)
        return
    for expert in range(mixture.experts):
        for name in (names.expert_gate, names.expert_up):
            yield f"{name.format(expert=expert)}.weight", (mixture.inner_size, hidden)
        yield f"{names.expert_down.format(expert=expert)}.weight", (hidden, mixture.inner_size)
