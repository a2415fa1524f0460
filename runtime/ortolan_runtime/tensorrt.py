"""What TensorRT must know before it builds an engine: the range of every dynamic shape.

Without profiles TensorRT rebuilds its engine, for up to minutes, whenever a length falls outside
what it saw so far. A bundle's manifest has profiles that cover every step: decoding (any number of
rows, one token each) and prefill chunks (one row, any number of tokens). Engines and kernel timings
are kept on disk. Option names: ONNX Runtime's documentation of the TensorRT execution provider.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ortolan_runtime.bundle import EnginePlan, Manifest, ShapeProfile, cache_directory
from ortolan_runtime.errors import InvalidParameter

Shape = tuple[int, ...]

_ENDS = ("min", "opt", "max")  # as the options call the least, the usual and the greatest


def engine_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder in which engines and timings are kept."""
    return cache_directory(environ) / "tensorrt"


def check_steps(plan: EnginePlan, *, rows: int, chunk: int) -> None:
    """Raise InvalidParameter where decoding so many rows, or so long a chunk, fits no profile."""
    for field, asked, sizes, flag in (
        ("slots", rows, [profile.rows for profile in plan.profiles], "--engine-rows"),
        ("prefill_chunk", chunk, [profile.tokens for profile in plan.profiles], "--engine-chunk"),
    ):
        most = max(greatest for _, _, greatest in sizes)
        if asked > most:
            raise InvalidParameter(
                field, f"must be <= {most}, the bundle's engines (`ortolan export {flag}`)", asked
            )


def tensorrt_options(manifest: Manifest, plan: EnginePlan, cache: Path) -> dict[str, str]:
    """Return the provider's options for a bundle, its engines kept in the folder ``cache``."""
    options = {
        f"trt_profile_{end}_shapes": _joined(manifest, plan.profiles, place)
        for place, end in enumerate(_ENDS)
    }
    return {
        **options,
        "trt_engine_cache_enable": _flag(plan.engine_cache),
        "trt_engine_cache_path": str(cache),
        "trt_engine_cache_prefix": manifest.source_digest[:16] or manifest.name,
        "trt_timing_cache_enable": _flag(plan.timing_cache),
        "trt_timing_cache_path": str(cache),
        "trt_fp16_enable": _flag(plan.fp16),
    }


def _joined(manifest: Manifest, profiles: Sequence[ShapeProfile], place: int) -> str:
    """Return ``name:1x2,…`` over all profiles; a name's shapes come in the profiles' order."""
    return ",".join(
        f"{name}:{'x'.join(map(str, shape))}"
        for profile in profiles
        for name, shape in _shapes(manifest, profile, place)
    )


def _shapes(manifest: Manifest, profile: ShapeProfile, place: int) -> Iterator[tuple[str, Shape]]:
    """Give each input that has a dynamic shape with its shape at one end of a profile."""
    graph, rows = manifest.graph, profile.rows[place]
    step = (rows, profile.tokens[place])
    shapes: dict[str | None, Shape] = {
        graph.input_ids: step,
        graph.position_ids: step,
        graph.seqlens_k: (rows,),
        graph.write_indices: (rows,),
        graph.logit_positions: (profile.positions[place],),
    }
    yield from ((name, shape) for name, shape in shapes.items() if name is not None)
    cache = (rows, manifest.kv_heads, manifest.context_length, manifest.head_size)
    for layer in range(manifest.layers):
        for kind in ("key", "value"):
            yield graph.past.format(layer=layer, kind=kind), cache


def _flag(value: bool) -> str:
    return "1" if value else "0"
