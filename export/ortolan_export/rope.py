"""Rotary position tables for every scaling that the known families use.

A table holds cos and sin of ``position * inverse_frequency``; a scaling changes the inverse
frequencies, and some multiply the table by an attention factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from ortolan_export.config import Config
from ortolan_export.errors import SourceError, UnsupportedModel
from ortolan_export.source import Float32

FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers in a config.json


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """How positions rotate the first ``dim`` values of a head.

    ``divisors`` float32 ``[dim / 2]`` divide the plain inverse frequencies ``theta^(-2i/dim)``;
    ``attention_factor`` multiplies cos and sin. ``reach`` is the number of positions for which the
    scaling was made, which ``max_position_embeddings`` may fall short of.
    """

    dim: int
    theta: float
    divisors: tuple[float, ...]
    attention_factor: float = 1.0
    reach: int


class _Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """What a scaling is computed from."""

    config: Config
    dim: int
    theta: float
    max_positions: int
    context_length: int

    @property
    def original(self) -> int:
        """Return the number of positions that the model was first trained on."""
        return self.config.count("original_max_position_embeddings", otherwise=self.max_positions)

    def frequencies(self) -> Float32:
        """Return the plain inverse frequencies, float32 ``[dim / 2]``."""
        exponents = np.arange(0, self.dim, 2, dtype=np.float32) / np.float32(self.dim)
        return (np.float32(self.theta) ** -exponents).astype(np.float32)


def read_ropes(
    config: Config,
    kinds: Sequence[str | None],
    *,
    head_size: int,
    local_field: str | None,
    max_positions: int,
    context_length: int | None,
) -> tuple[Rope | None, ...]:
    """Return the rotary embedding of each layer, by the kind of its attention.

    ``kinds`` holds full_attention, sliding_attention or, for a layer that does not rotate, None.
    Older files hold ``rope_theta`` and ``rope_scaling``, newer ones both in ``rope_parameters``,
    which may have a part for each kind. Raises UnsupportedModel for a type that is not known,
    SourceError for values that no rotation can be computed from.
    """
    ropes: dict[str | None, Rope | None] = {None: None}
    for kind in dict.fromkeys(kind for kind in kinds if kind is not None):
        section = _section(config, kind, local_field)
        scaling = _Scaling(
            config=section,
            dim=_rotated_size(config, section, head_size),
            theta=section.positive("rope_theta", otherwise=config.positive("rope_theta")),
            max_positions=max_positions,
            context_length=context_length or max_positions,
        )
        ropes[kind] = _scaled(_scaling_function(section), scaling)
    return tuple(ropes[kind] for kind in kinds)


def rope_tables(rope: Rope, length: int, head_size: int) -> tuple[Float32, Float32]:
    """Return cos and sin for positions 0 to ``length - 1``, float32 ``[length, head_size / 2]``.

    Pairs past the rotated ones turn by no angle.
    """
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    powers = np.float32(rope.theta) ** exponents
    frequencies = 1 / (np.array(rope.divisors, np.float32) * powers)
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies[None].astype(np.float32)
    factor = np.float32(rope.attention_factor)
    rest = ((0, 0), (0, (head_size - rope.dim) // 2))
    cos = np.pad(np.cos(angles) * factor, rest, constant_values=1)
    return cos, np.pad(np.sin(angles) * factor, rest)


def _scaled(scale: Callable[[_Scaling], Rope], scaling: _Scaling) -> Rope:
    try:
        with np.errstate(divide="raise", over="raise", invalid="raise"):
            rope = scale(scaling)
            rope_tables(rope, 2, scaling.dim)  # what overflows there is found here
            return rope
    except (ArithmeticError, ValueError) as exc:  # such as the logarithm of a negative number
        raise SourceError(
            f"{scaling.config.origin}: no rotation can be computed from these values ({exc}); "
            "correct the one that is out of its range"
        ) from exc


def _scaling_function(section: Config) -> Callable[[_Scaling], Rope]:
    kind = section.text("rope_type", otherwise=section.text("type", otherwise="default"))
    if kind not in _SCALINGS:
        known = ", ".join(sorted(_SCALINGS))
        raise UnsupportedModel(
            f"{section.origin}: rope_type must be one of {known}, got {kind!r}; "
            "this rotary scaling is not supported"
        )
    return _SCALINGS[kind]


def _section(config: Config, kind: str, local_field: str | None) -> Config:
    """Return the part of a configuration that describes one kind of layer."""
    section = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    own = section.get(kind)
    if isinstance(own, Mapping):
        return Config(own, origin=f"{section.origin}: {kind}")
    if any(isinstance(value, Mapping) for value in section.fields.values()):
        raise UnsupportedModel(
            f"{section.origin} must hold one set of values, or one named {kind}, "
            f"got {', '.join(section.fields)}; this is not supported"
        )
    if kind == SLIDING and local_field is not None:
        return Config({"rope_theta": config.positive(local_field)}, origin=config.origin)
    if config.has("original_max_position_embeddings"):  # Phi-3 keeps it outside
        section.fields["original_max_position_embeddings"] = config.get(
            "original_max_position_embeddings"
        )
    return section


def _rotated_size(config: Config, section: Config, head_size: int) -> int:
    """Return how many of a head's values are rotated."""
    field = "partial_rotary_factor"
    factor = section.number(field, otherwise=config.number(field, otherwise=1.0))
    if factor != 1.0 and field not in config.defaults:
        raise UnsupportedModel(
            f"{config.origin}: {field} must be 1.0 for this architecture, got {factor}"
        )
    size = int(head_size * factor)
    if not 0 < size <= head_size or size % 2:
        raise config.wrong(field, f"must leave an even part of a head of {head_size}", factor)
    return size


def _plain(scaling: _Scaling) -> Rope:
    return _rope(scaling, np.ones(scaling.dim // 2, np.float32), reach=scaling.max_positions)


def _linear(scaling: _Scaling) -> Rope:
    factor = scaling.config.positive("factor")
    divisors = np.full(scaling.dim // 2, factor, np.float32)
    return _rope(scaling, divisors, reach=scaling.max_positions)


def _dynamic(scaling: _Scaling) -> Rope:
    """Return the plain embedding: this scaling acts past ``max_position_embeddings`` alone.

    There it turns every cached key with each new token, which no cache of rotated keys can follow;
    so ``reach`` ends where it would begin.
    """
    return _plain(scaling)


def _llama3(scaling: _Scaling) -> Rope:
    """Slow frequencies are divided by ``factor``, fast ones kept, those between blended."""
    config = scaling.config
    factor = config.positive("factor")
    low, high = config.positive("low_freq_factor"), config.positive("high_freq_factor")
    turns = scaling.original * scaling.frequencies() / (2 * np.pi)  # in the original context
    share = np.clip((turns - low) / (high - low), 0, 1)  # of the unscaled frequency
    divisors = 1 / ((1 - share) / factor + share)
    reach = max(scaling.max_positions, int(scaling.original * factor))
    return _rope(scaling, divisors, reach=reach)


def _yarn(scaling: _Scaling) -> Rope:
    """Blend by how often a frequency turns in the original context (Peng et al., 2023)."""
    config = scaling.config
    factor = config.positive("factor", otherwise=scaling.max_positions / scaling.original)
    first = _yarn_dimension(scaling, config.number("beta_fast", otherwise=32.0) or 32.0)
    last = _yarn_dimension(scaling, config.number("beta_slow", otherwise=1.0) or 1.0)
    if config.flag("truncate", otherwise=True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, scaling.dim - 1)
    width = last - first or 0.001  # a step needs some width to divide by
    ramp = np.clip((np.arange(scaling.dim // 2, dtype=np.float32) - first) / width, 0, 1)
    return _rope(
        scaling,
        1 / (ramp / factor + (1 - ramp)),
        attention_factor=_yarn_attention(config, factor),
        reach=max(scaling.max_positions, int(scaling.original * factor)),
    )


def _yarn_dimension(scaling: _Scaling, turns: float) -> float:
    """Return which pair, as a fraction, turns ``turns`` times in the original context."""
    ratio = math.log(scaling.original / (turns * 2 * math.pi))
    return scaling.dim * ratio / (2 * math.log(scaling.theta))


def _yarn_attention(config: Config, factor: float) -> float:
    if config.has("attention_factor"):
        return config.number("attention_factor")

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    # Both set and not 0: DeepSeek's form; else the paper's.
    if config.get("mscale") and config.get("mscale_all_dim"):
        return magnitude(config.number("mscale")) / magnitude(config.number("mscale_all_dim"))
    return magnitude(1.0)


def _longrope(scaling: _Scaling) -> Rope:
    """Take the long factors when the bundle's context exceeds the original one, else the short.

    One table serves every request, so a bundle for the long context uses the long factors for short
    prompts too, as servers with a fixed maximum do.
    """
    config = scaling.config
    factor = config.positive("factor", otherwise=scaling.max_positions / scaling.original)
    is_long = scaling.context_length > scaling.original
    field = "long_factor" if is_long else "short_factor"
    grown = 1 + math.log(factor) / math.log(scaling.original) if factor > 1 else 1.0
    return _rope(
        scaling,
        _listed_divisors(scaling, field),
        attention_factor=config.number("attention_factor", otherwise=math.sqrt(grown)),
        reach=scaling.max_positions,
    )


def _given_divisors(scaling: _Scaling) -> Rope:
    """Take the divisors from the source itself, as GGUF files give them in ``rope_freqs``."""
    return _rope(scaling, _listed_divisors(scaling, "divisors"), reach=scaling.max_positions)


def _listed_divisors(scaling: _Scaling, field: str) -> Float32:
    divisors, count = scaling.config.numbers(field), scaling.dim // 2
    if len(divisors) != count or min(divisors) <= 0:
        raise scaling.config.wrong(field, f"must hold {count} numbers > 0", list(divisors))
    return np.array(divisors, np.float32)


def _rope(
    scaling: _Scaling,
    divisors: Float32,
    *,
    reach: int,
    attention_factor: float = 1.0,
) -> Rope:
    return Rope(
        dim=scaling.dim,
        theta=scaling.theta,
        divisors=tuple(float(divisor) for divisor in divisors),
        attention_factor=attention_factor,
        reach=reach,
    )


_SCALINGS: Mapping[str, Callable[[_Scaling], Rope]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
    "divisors": _given_divisors,
}
