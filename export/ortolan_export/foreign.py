"""Reads what a graph of another exporter's takes and gives, and refuses what cannot be served.

Everything is read from the graph's inputs and outputs, since such exports have no manifest; what
shapes leave open comes from config.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir

from ortolan_export.config import LARGEST_COUNT, Config
from ortolan_export.errors import SourceError, UnsupportedModel
from ortolan_export.verify import LEAST_CONTEXT
from ortolan_runtime.bundle import KVDtype, MaskedGraph, Precision

_OPTIONAL = ("attention_mask", "position_ids", "num_logits_to_keep", "use_cache_branch")
_KV_DTYPES: Mapping[ir.DataType, KVDtype] = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
}
# Parts of names of inputs that a decoder of text does not have, and whose they are.
_OTHER_MODELS = {
    "encoder": "an encoder-decoder",
    "conv": "a hybrid of attention and convolutions",
    "ssm": "a hybrid of attention and state spaces",
    "recurrent": "a recurrent model",
    "cache_params": "a state-space model",
    "embeds": "a model that takes embeddings in the place of tokens",
    "pixel": "a model that takes images",
    "audio": "a model that takes sound",
}
_LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_WINDOW_FIELDS = ("sliding_window", "window_size", "attention_window", "attention_chunk_size")
_HEADS_FIELDS = ("num_key_value_heads", "num_attention_heads", "n_head")
# A digit for the layer, and the last word that tells keys from values.
_CACHE_NAME = re.compile(r"(?P<before>\D*)\d+(?P<after>\D*)")
_KIND = re.compile(r"(.*)(key|value)", re.DOTALL)
_INT8_OPERATORS = frozenset({"MatMulInteger", "DynamicQuantizeMatMul", "DynamicQuantizeLinear"})


class ForeignGraph(msgspec.Struct, frozen=True, kw_only=True):
    """What a graph is: its names, the shape of its KV cache, and how its weights are stored.

    ``writes_in_place`` says that its attention may be able to append to the cache where it lies.
    """

    names: MaskedGraph
    precision: Precision
    layers: int
    kv_heads: int
    head_size: int
    kv_dtype: KVDtype
    vocab_size: int
    writes_in_place: bool
    int4_accuracy_level: int | None
    int4_block_size: int | None


def load_graph(path: Path) -> ir.Model:
    """Return the graph at ``path``, its external data not yet read. Raises SourceError."""
    try:
        return ir.load(path)
    except Exception as exc:  # protobuf raises nothing narrower
        raise SourceError(f"{path} is no ONNX graph ({exc}); download it again") from exc


def read_graph(model: ir.Model, config: Config) -> ForeignGraph:
    """Return what the graph is. Raises SourceError and UnsupportedModel, naming what is odd."""
    inputs = _named(v for v in model.graph.inputs if v.name not in model.graph.initializers)
    outputs = _named(model.graph.outputs)
    names = _names(inputs, outputs)
    shape, dtype = _cache(inputs, names)
    return ForeignGraph(
        names=names,
        precision=_precision(model),
        layers=_layers(inputs, names),
        kv_heads=shape[0] or _first_count(config, _HEADS_FIELDS, "the number of KV heads"),
        head_size=shape[1] or _head_size(config),
        kv_dtype=dtype,
        vocab_size=_size(outputs[names.logits], 2) or config.count("vocab_size"),
        int4_accuracy_level=_largest_int4_attribute(model, "accuracy_level"),
        int4_block_size=_largest_int4_attribute(model, "block_size"),
        writes_in_place=any(node.op_type == "GroupQueryAttention" for node in all_nodes(model)),
    )


def choose_context_length(config: Config, asked_for: int | None) -> int:
    """Return the length asked for, else the model's own. Raises SourceError."""
    fields = [field for field in _LENGTH_FIELDS if config.has(field)]
    if not fields and asked_for is None:
        raise SourceError(
            f"{config.origin}: {', '.join(_LENGTH_FIELDS)} are all missing; "
            "say how long the context is by --context-length"
        )
    longest = config.count(fields[0], least=LEAST_CONTEXT) if fields else LARGEST_COUNT
    length = longest if asked_for is None else asked_for
    if not LEAST_CONTEXT <= length <= longest:
        raise SourceError(
            f"--context-length must be within {LEAST_CONTEXT}..{longest}, got {length}"
        )
    return length


def may_have_windows(config: Config) -> bool:
    """Return whether config.json tells of attention that ends at some distance.

    Raises SourceError.
    """
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list):
        raise config.wrong("layer_types", "must be a list", kinds)
    windows = [config.get(field) for field in _WINDOW_FIELDS]
    is_off = config.get("use_sliding_window") is False
    return any(windows) and not is_off or any(kind != "full_attention" for kind in kinds)


def quantises_rows_together(model: ir.Model) -> bool:
    """Return whether one scale serves the activations of all rows of a step."""
    return any(node.op_type == "DynamicQuantizeLinear" for node in all_nodes(model))


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Give the nodes of a graph and of all graphs inside it."""
    yield from ir.traversal.RecursiveGraphIterator(model.graph)


def _named(values: Any) -> dict[str, ir.Value]:
    return {value.name: value for value in values}


def _names(inputs: Mapping[str, ir.Value], outputs: Mapping[str, ir.Value]) -> MaskedGraph:
    if "logits" not in outputs:
        raise UnsupportedModel(
            f"the graph must return logits, it returns {_some(outputs)}; "
            "export the model for text generation"
        )
    past = _cache_names([name for name in inputs if name not in ("input_ids", *_OPTIONAL)])
    _refuse_others(inputs, past)
    if not past:
        raise UnsupportedModel(
            f"the graph has no KV cache among its inputs, which are {_some(inputs)}; "
            "export the model with a past (optimum's task text-generation-with-past)"
        )
    if "input_ids" not in inputs:
        raise UnsupportedModel(f"the graph must take input_ids, it takes {_some(inputs)}")
    present = _cache_names([name for name in outputs if name != "logits"])
    optional = {name: name if name in inputs else None for name in _OPTIONAL}
    names = MaskedGraph(past=next(iter(past)), present=_only(present, "the graph's outputs"))
    return msgspec.structs.replace(names, **optional)


def _cache_names(names: Sequence[str]) -> dict[str, None]:
    """Return the templates of the names of keys and values, in their order."""
    found: dict[str, None] = {}
    for name in names:
        place, kind = _CACHE_NAME.fullmatch(name), _KIND.match(name)
        if place is None or kind is None:
            continue
        start, end = kind.span(2)
        digits = re.search(r"\d+", name)
        assert digits is not None
        template = list(name)
        parts = sorted([(start, end, "{kind}"), (*digits.span(), "{layer}")], reverse=True)
        for begin, stop, text in parts:
            template[begin:stop] = text
        found["".join(template)] = None
    return found


def _only(templates: Mapping[str, None], whose: str) -> str:
    if len(templates) != 1:
        raise UnsupportedModel(
            f"{whose} must hold one kind of KV cache, found {_some(templates)}; "
            "only decoders with a key and a value a layer are supported"
        )
    return next(iter(templates))


def _refuse_others(inputs: Mapping[str, ir.Value], past: Mapping[str, None]) -> None:
    """Raise UnsupportedModel for an input that only other kinds of models have."""
    for name in inputs:
        kind = next((kind for part, kind in _OTHER_MODELS.items() if part in name), None)
        if kind is not None:
            raise UnsupportedModel(f"the graph's input {name!r} is that of {kind}: not supported")
    layers = range(len(inputs))
    if len(past) > 1:
        _only(past, "the graph's inputs")
    cached = {t.format(layer=n, kind=k) for t in past for n in layers for k in ("key", "value")}
    for name in inputs:
        if name not in ("input_ids", *_OPTIONAL) and name not in cached:
            known = ", ".join(("input_ids", *_OPTIONAL))
            raise UnsupportedModel(
                f"the graph's input {name!r} is not known; it may take {known} and a KV cache"
            )


def _layers(inputs: Mapping[str, ir.Value], names: MaskedGraph) -> int:
    cached = len(inputs) - 1 - sum(name in inputs for name in _OPTIONAL)
    layers = cached // 2
    wanted = {names.past.format(layer=n, kind=k) for n in range(layers) for k in ("key", "value")}
    missing = sorted(wanted - set(inputs))
    if missing or cached % 2:
        raise UnsupportedModel(
            f"the graph must have a key and a value for each of its layers, but lacks "
            f"{_some(missing)}; only decoders with attention in every layer are supported"
        )
    return layers


def _cache(
    inputs: Mapping[str, ir.Value], names: MaskedGraph
) -> tuple[tuple[int | None, int | None], KVDtype]:
    """Return the heads and the head size that all layers have, None where open; and the type."""
    shapes, dtypes = set(), set()
    for layer in range(_layers(inputs, names)):
        for kind in ("key", "value"):
            name = names.past.format(layer=layer, kind=kind)
            value = inputs[name]
            if value.shape is None or len(value.shape) != 4:
                raise UnsupportedModel(
                    f"the graph's input {name!r} must be [batch, heads, past, head size], "
                    f"got {value.shape}"
                )
            shapes.add((_size(value, 1), _size(value, 3)))
            dtypes.add(value.dtype)
    if len(shapes) > 1 or len(dtypes) > 1:
        raise UnsupportedModel(
            f"the keys and values of all layers must have one shape and type, got "
            f"{_some(map(str, shapes))} of {_some(map(str, dtypes))}"
        )
    (dtype,) = dtypes
    if dtype is None or dtype not in _KV_DTYPES:
        raise UnsupportedModel(f"the KV cache must be in float32 or float16, got {dtype}")
    return shapes.pop(), _KV_DTYPES[dtype]


def _size(value: ir.Value, axis: int) -> int | None:
    """Return the size of an axis, None where the graph leaves it open."""
    if value.shape is None or axis >= len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def _first_count(config: Config, fields: Sequence[str], what: str) -> int:
    for field in fields:
        if config.has(field):
            return config.count(field)
    raise SourceError(f"{config.origin}: {', '.join(fields)} are all missing, which give {what}")


def _head_size(config: Config) -> int:
    if config.has("head_dim"):
        return config.count("head_dim")
    return config.count("hidden_size") // config.count("num_attention_heads")


def _precision(model: ir.Model) -> Precision:
    """Return how most weights are stored, by the operators that multiply them."""
    bits = {
        node.attributes["bits"].as_int() for node in all_nodes(model) if "bits" in node.attributes
    }
    operators = {node.op_type for node in all_nodes(model)}
    if 4 in bits or "MatMulBnb4" in operators:
        return "int4"
    if 8 in bits or operators & _INT8_OPERATORS:
        return "int8"
    sizes = {ir.DataType.FLOAT: 0, ir.DataType.FLOAT16: 0}
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype in sizes:
                sizes[value.const_value.dtype] += value.const_value.nbytes
    return "fp16" if sizes[ir.DataType.FLOAT16] > sizes[ir.DataType.FLOAT] else "fp32"


def _largest_int4_attribute(model: ir.Model, name: str) -> int | None:
    """Return an attribute of 4-bit layers, the largest where they differ, None without such."""
    layers = (node for node in all_nodes(model) if node.op_type == "MatMulNBits")
    values = (
        _int_attribute(node, name, 0) for node in layers if _int_attribute(node, "bits", 4) == 4
    )
    return max(values, default=None)


def _int_attribute(node: ir.Node, name: str, otherwise: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else otherwise


def _some(names: Any) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:6]) + (", …" if len(shown) > 6 else "") or "none"
