"""What TensorRT must know before it builds an engine: the range of every dynamic shape.

Without profiles TensorRT rebuilds its engine, for up to minutes, whenever a length falls outside
what it saw so far. Two profiles cover everything that the engine ever runs: decode steps (any
number of rows, one token each) and prefill chunks (one row, any number of tokens). Engines and
kernel timings are kept on disk. Option names: ONNX Runtime's documentation of the TensorRT
execution provider.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ortolan_runtime.bundle import Manifest

Shape = tuple[int, ...]


class ShapeRange(msgspec.Struct, frozen=True):
    """The least, the usual and the greatest shape of one input in one profile."""

    least: Shape
    usual: Shape
    greatest: Shape


class ShapeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The greatest numbers of a step: rows that decode, tokens of a chunk, tokens of a row."""

    rows: int
    chunk: int
    length: int


def tensorrt_options(manifest: Manifest, limits: ShapeLimits, cache: Path) -> dict[str, str]:
    """Return the provider's options for a bundle, its engines kept in the folder ``cache``."""
    profiles = [_decode_profile(manifest, limits), _prefill_profile(manifest, limits)]
    return {
        "trt_profile_min_shapes": _joined(profiles, "least"),
        "trt_profile_opt_shapes": _joined(profiles, "usual"),
        "trt_profile_max_shapes": _joined(profiles, "greatest"),
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(cache),
        "trt_engine_cache_prefix": manifest.source_digest[:16] or manifest.name,
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(cache),
        "trt_fp16_enable": "1" if manifest.precision == "fp16" else "0",
    }


def _decode_profile(manifest: Manifest, limits: ShapeLimits) -> dict[str, ShapeRange]:
    """Return the ranges of a step that decodes 1 to ``rows`` rows."""
    graph, usual = manifest.graph, min(8, limits.rows)
    sizes = (1, usual, limits.rows)
    ranges = {
        graph.input_ids: _range(*((rows, 1) for rows in sizes)),
        graph.seqlens_k: _range(*((rows,) for rows in sizes)),
        graph.logit_positions: _range(*((rows,) for rows in sizes)),
    }
    for name in _cache_names(manifest):
        ranges[name] = _range(*(_cache_shape(manifest, rows, limits.length) for rows in sizes))
    return ranges


def _prefill_profile(manifest: Manifest, limits: ShapeLimits) -> dict[str, ShapeRange]:
    """Return the ranges of a chunk of 1 to ``chunk`` tokens of one row."""
    graph = manifest.graph
    cache = _cache_shape(manifest, 1, limits.length)
    ranges = {
        graph.input_ids: _range((1, 1), (1, limits.chunk), (1, limits.chunk)),
        graph.seqlens_k: _range((1,), (1,), (1,)),
        graph.logit_positions: _range((1,), (1,), (limits.chunk,)),
    }
    for name in _cache_names(manifest):
        ranges[name] = _range(cache, cache, cache)
    return ranges


def _range(least: Shape, usual: Shape, greatest: Shape) -> ShapeRange:
    return ShapeRange(least, usual, greatest)


def _cache_names(manifest: Manifest) -> Iterator[str]:
    for layer in range(manifest.layers):
        for kind in ("key", "value"):
            yield manifest.graph.past.format(layer=layer, kind=kind)


def _cache_shape(manifest: Manifest, rows: int, length: int) -> Shape:
    return (rows, manifest.kv_heads, length, manifest.head_size)


def _joined(profiles: Sequence[Mapping[str, ShapeRange]], end: str) -> str:
    """Return ``name:1x2,…`` over all profiles; a name's ranges come in the profiles' order."""
    return ",".join(
        f"{name}:{'x'.join(map(str, getattr(shapes, end)))}"
        for profile in profiles
        for name, shapes in profile.items()
    )
