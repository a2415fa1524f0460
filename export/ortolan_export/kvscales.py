"""A KV cache in int8: the scale of each of its channels, measured, and graphs that store by them.

A scale belongs to one channel of one head of one layer, for all positions, so a token's keys and
values become the same whole numbers in any row, chunk and company.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir

from ortolan_export.architectures.family import Decoder
from ortolan_export.attention import KINDS
from ortolan_export.calibration import chunks_of
from ortolan_export.progress import Report
from ortolan_export.rope import Rope
from ortolan_export.source import Float32
from ortolan_export.verify import GraphRunner
from ortolan_runtime.bundle import Manifest

_LIMIT = 2048  # tokens that are measured
_CHUNK = 128
_LAST = 127
# Other texts reach a little further than the one that was measured; what does is cut off.
_HEADROOM = 1.1
_SMALLEST_SCALE = 1e-30
_SCALES_PLACE = 12  # of the operator's inputs

Scales = Mapping[tuple[int, str], Float32]  # by layer and kind, [1, kv_heads, 1, head_size]


def measure_scales(
    folder: Path,
    decoder: Decoder,
    *,
    manifest: Manifest,
    token_ids: Sequence[int],
    report: Report,
) -> Scales:
    """Return the scales of the cache that the graphs in ``folder`` write, still in float32.

    ``report`` is told (stage, tokens done, tokens in all).
    """
    written = msgspec.structs.replace(manifest, kv_dtype="float32")
    runner = GraphRunner(folder, written, rows=1, length=_CHUNK)
    chunks = list(chunks_of(token_ids[:_LIMIT], min(_CHUNK, decoder.context_length)))
    done, total = 0, sum(map(len, chunks))
    shape = (decoder.kv_heads, decoder.head_size)
    largest = {
        (layer, kind): np.zeros(shape, np.float32)
        for layer in range(decoder.layers)
        for kind in KINDS
    }
    for chunk in chunks:
        report("measuring the KV cache", done, total)
        runner.last([chunk], [0])
        for place, cache in runner.caches.items():
            magnitudes = np.abs(cache[0, :, : len(chunk)])
            if place[1] == "key":
                magnitudes = _rotated_pairs(magnitudes, decoder.ropes[place[0]])
            largest[place] = np.maximum(largest[place], magnitudes.max(axis=1))
        done += len(chunk)
    report("measuring the KV cache", total, total)
    return {place: _scales(values) for place, values in largest.items()}


def quantise_cache(path: Path, scales: Scales) -> None:
    """Change the graph at ``path``, whose cache is in float32, to one whose cache is in int8."""
    model = ir.load(path)
    nodes = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    for layer, node in enumerate(nodes):
        node.resize_inputs(_SCALES_PLACE + len(KINDS))
        for place, kind in enumerate(KINDS, start=_SCALES_PLACE):
            name = f"kv.{layer}.{kind}.scale"
            scale = ir.val(name, const_value=ir.tensor(scales[layer, kind], name=name))
            model.graph.register_initializer(scale)
            node.replace_input_with(place, scale)
            node.attributes[f"{kind[0]}_quant_type"] = ir.AttrString(
                f"{kind[0]}_quant_type", "PER_CHANNEL"
            )
        node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", 8)
        for value in (*node.inputs[3:5], *node.outputs[1:3]):
            assert value is not None, "the cache is given and returned"
            value.dtype = ir.DataType.INT8
    ir.save(model, path)


def _rotated_pairs(magnitudes: Float32, rope: Rope | None) -> Float32:
    """Return the length of each pair of channels that positions rotate into each other.

    ``magnitudes`` is float32 ``[kv_heads, tokens, head_size]``. Somewhere in a long text, either
    channel of a pair is as large as both together.
    """
    if rope is None:
        return magnitudes
    half = rope.dim // 2
    lengths = np.hypot(magnitudes[..., :half], magnitudes[..., half : rope.dim])
    return np.concatenate((lengths, lengths, magnitudes[..., rope.dim :]), axis=-1)


def _scales(largest: Float32) -> Float32:
    """Return the scales of channels whose largest magnitudes are ``[kv_heads, head_size]``."""
    scales = np.maximum(largest * np.float32(_HEADROOM / _LAST), np.float32(_SMALLEST_SCALE))
    found: Float32 = scales[None, :, None, :]
    return found
