"""Describes a bundle in words and sizes: what it is, what it holds, what it needs to run."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import onnx_ir as ir

from ortolan_runtime.bundle import (
    GRAPH_NAME,
    Bundle,
    Manifest,
    cache_directory,
    open_bundle,
)

# By names of tensors; the first that fits counts.
_KINDS = (
    ("rotary tables", r"^rope\b"),
    ("embedding and head", r"embed|word_embeddings|\bwte\b|\bwpe\b|lm_head|\.turn$"),
    ("experts", r"experts|router|block_sparse_moe|mlp\.gate\.weight"),
    ("norms", r"norm|\bln_"),
    ("attention", r"\bqkv\b|attn|attention"),
    ("MLP", r"mlp|\bfc[12]\b"),
    ("constants", r"^const\."),
)
_OTHERS = "others"
_MEGABYTE = 1e6


class Tensor(msgspec.Struct, frozen=True):
    """One stored tensor of a graph: its name, its type and its size in bytes."""

    name: str
    dtype: str
    size: int


def describe(path: Path) -> str:
    """Return what the bundle at ``path`` is, as lines for a reader. Raises BundleError."""
    bundle = open_bundle(path, cache=cache_directory(os.environ))
    graphs = [ir.load(path / name) for name in _graph_names(bundle.manifest)]
    sections = (
        _model(bundle),
        _files(bundle.manifest),
        _weights(_tensors(graphs)),
        _needs(bundle.manifest, graphs),
    )
    return "\n\n".join("\n".join(section) for section in sections)


def kind_of(name: str) -> str:
    """Return what a tensor of this name is for."""
    return next((kind for kind, pattern in _KINDS if re.search(pattern, name)), _OTHERS)


def _graph_names(manifest: Manifest) -> list[str]:
    return [name for name in (GRAPH_NAME, manifest.prefill_graph) if name is not None]


def _tensors(graphs: Sequence[ir.Model]) -> list[Tensor]:
    """Return the tensors of all graphs; what two of them share counts once."""
    found: dict[object, Tensor] = {}
    for index, model in enumerate(graphs):
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is None:
                continue
            place: object = (index, name)
            if isinstance(tensor, ir.ExternalTensor):
                place = (tensor.location, tensor.offset)
            found[place] = Tensor(name, tensor.dtype.name.lower(), tensor.nbytes)
    return list(found.values())


def _model(bundle: Bundle) -> Iterator[str]:
    manifest = bundle.manifest
    yield _line("model", f"{manifest.name}, {manifest.architecture}")
    yield _line("source", f"SHA-256 {manifest.source_digest}")
    yield _line("exported by", f"ortolan {manifest.exporter_version}")
    yield _line("precision", _precision(manifest))
    yield _line("vocabulary", f"{manifest.vocab_size} tokens")
    yield _line("context", f"{manifest.context_length} tokens")
    yield _line("KV cache", _kv_cache(manifest))
    yield _line("BOS, EOS", f"{manifest.bos_token_id}, {list(manifest.eos_token_ids)}")
    yield _line("chat template", "yes" if bundle.chat_template else "no")
    defaults = msgspec.structs.asdict(manifest.generation_defaults).items()
    given = ", ".join(f"{name} {value}" for name, value in defaults if value is not None)
    yield _line("suggestions", given or "none")
    yield _line("golden prompts", str(len(manifest.golden)))


def _precision(manifest: Manifest) -> str:
    level, block_size = manifest.int4_accuracy_level, manifest.int4_block_size
    detail = "" if level is None else f", accuracy level {level}"
    detail += "" if block_size is None else f", blocks of {block_size}"
    alone = "by itself" if manifest.single_row_exact else "beside a spare row where needed"
    return f"{manifest.precision}{detail}; a lone row runs {alone}, to have the bits of a batch"


def _kv_cache(manifest: Manifest) -> str:
    return (
        f"{manifest.layers} layers x {manifest.kv_heads} heads x {manifest.head_size}, "
        f"{manifest.kv_dtype}, {manifest.kv_layout}"
    )


def _files(manifest: Manifest) -> Iterator[str]:
    yield "files"
    for record in manifest.files:
        yield _line(f"  {record.name}", f"{_size(record.size):>13}")


def _weights(tensors: Sequence[Tensor]) -> Iterator[str]:
    sizes: Counter[str] = Counter()
    types: dict[str, set[str]] = {}
    for tensor in tensors:
        kind = kind_of(tensor.name)
        sizes[kind] += tensor.size
        types.setdefault(kind, set()).add(tensor.dtype)
    yield "weights"
    for kind, size in sizes.most_common():
        yield _line(f"  {kind}", f"{_size(size):>13}  {', '.join(sorted(types[kind]))}")


def _needs(manifest: Manifest, graphs: Sequence[ir.Model]) -> Iterator[str]:
    domains: dict[str, set[str]] = {}
    for model in graphs:
        for node in model.graph:
            domains.setdefault(node.domain or "ONNX", set()).add(node.op_type)
    weights = sum(record.size for record in manifest.files)
    kv_bytes = manifest.kv_bytes_per_token
    yield "needs"
    yield _line(
        "  onnxruntime", f"on {_devices(manifest)}; checked with {manifest.onnxruntime_version}"
    )
    for domain, operators in sorted(domains.items()):
        yield _line(f"  {domain}", ", ".join(sorted(operators)))
    yield _line("  memory", f"{_size(weights)} for weights")
    full = _size(kv_bytes * manifest.context_length)
    yield _line("  memory of a sequence", f"{kv_bytes} bytes a token, {full} in a full context")


def _devices(manifest: Manifest) -> str:
    return f"{' or '.join(manifest.devices)}, made for {manifest.target}"


def _line(name: str, value: str) -> str:
    return f"{name:<24}{value}"


def _size(count: int) -> str:
    return f"{count / _MEGABYTE:.3f} MB"
