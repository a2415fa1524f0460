"""Writes graphs as other exporters do, from a tiny Llama checkpoint: plain operators, a mask, a KV
cache that each step takes and returns longer.

What such graphs differ in is an option: where positions come from, how far attention reaches, how
weights are stored.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import ml_dtypes  # noqa: F401 - bfloat16 for safetensors
import numpy as np
import onnx_ir as ir

from ortolan_export.checkpoint import HuggingFaceCheckpoint
from ortolan_export.fourbits import nearest_blocks
from ortolan_export.graph import MICROSOFT, GraphBuilder
from ortolan_export.weightfile import WeightFile

Positions = Literal["input", "mask", "places"]

_FAR_BELOW = float(np.finfo(np.float32).min)


def write_export(
    folder: Path, checkpoint: Path, *, graph: str = "model.onnx", **options: Any
) -> Path:
    """Write ``graph`` with its data and the texts of ``checkpoint`` to ``folder``; return that.

    ``options`` are those of ``LlamaGraph``.
    """
    path = folder / graph
    path.parent.mkdir(parents=True, exist_ok=True)
    with WeightFile(path.with_suffix(".onnx_data")) as weights:
        LlamaGraph(HuggingFaceCheckpoint(checkpoint), GraphBuilder(weights), **options).save(path)
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        if (checkpoint / name).is_file():
            shutil.copy(checkpoint / name, folder / name)
    return folder


class LlamaGraph:
    """A Llama in plain operators.

    ``positions`` come from an input, from the mask, or are the places in the cache; ``window`` is
    counted over places; ``is_quantised`` gives each linear layer's activations one scale for all
    rows; ``block_size`` keeps weights in 4 bits by blocks of that many; ``has_keep`` adds
    num_logits_to_keep; ``half`` keeps the cache in float16; ``is_fused`` leaves attention to
    GroupQueryAttention, as onnxruntime-genai does; ``has_switch`` adds use_cache_branch, whose
    wrong use makes all logits numbers that are none.
    """

    def __init__(
        self,
        checkpoint: HuggingFaceCheckpoint,
        graph: GraphBuilder,
        *,
        positions: Positions = "input",
        window: int | None = None,
        is_quantised: bool = False,
        block_size: int | None = None,
        has_keep: bool = False,
        half: bool = False,
        is_fused: bool = False,
        has_switch: bool = False,
    ) -> None:
        self._source, self._g, config = checkpoint, graph, checkpoint.config
        self._positions, self._window = positions, window
        self._is_quantised, self._has_keep, self._is_fused = is_quantised, has_keep, is_fused
        self._has_switch, self._block_size = has_switch, block_size
        self._dtype = ir.DataType.FLOAT16 if half else ir.DataType.FLOAT
        self._heads, self._kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self._size = config.get("head_dim") or config["hidden_size"] // self._heads
        self._layers, self._vocab = config["num_hidden_layers"], config["vocab_size"]
        self._eps = config["rms_norm_eps"]
        self._theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]

    def save(self, path: Path) -> None:
        g = self._g
        self._ids = g.input("input_ids", ir.DataType.INT64, ["batch", "sequence"])
        self._mask = g.input("attention_mask", ir.DataType.INT64, ["batch", "total"])
        if not self._is_fused:
            self._allowed = self._attended()
            self._cos, self._sin = self._rotation()
        x = g.op("Gather", self._weight("model.embed_tokens.weight"), self._ids)
        for layer in range(self._layers):
            prefix = f"model.layers.{layer}"
            normed = self._norm(f"{prefix}.input_layernorm", x)
            attention = self._fused_attention if self._is_fused else self._attention
            x = g.op("Add", x, attention(layer, normed))
            normed = self._norm(f"{prefix}.post_attention_layernorm", x)
            x = g.op("Add", x, self._mlp(f"{prefix}.mlp", normed))
        x = self._norm("model.norm", x)
        if self._has_keep:
            keep = g.input("num_logits_to_keep", ir.DataType.INT64, [])
            start = g.op("Unsqueeze", g.op("Neg", keep), self._ints(0))
            x = g.op("Slice", x, start, self._ints(np.iinfo(np.int64).max), self._ints(1))
        is_tied = "lm_head.weight" not in self._source.shapes
        logits = self._linear("model.embed_tokens" if is_tied else "lm_head", x)
        if self._has_switch:
            logits = g.op(
                "Where", self._is_switched_rightly(), logits, g.constant(np.nan, np.float32)
            )
        g.output(logits, "logits", ir.DataType.FLOAT, ["batch", "sequence", self._vocab])
        g.save(path)

    def _is_switched_rightly(self) -> ir.Value:
        g = self._g
        switch = g.input("use_cache_branch", ir.DataType.BOOL, [1])
        has_past = g.op("Greater", self._length(self._mask), self._length(self._ids))
        return g.op("Equal", switch, has_past)

    def _attended(self) -> ir.Value:
        """Return which places each new token attends to, bool ``[batch, 1, sequence, total]``."""
        g = self._g
        total, count = self._length(self._mask), self._length(self._ids)
        one, zero = g.constant(1, np.int64), g.constant(0, np.int64)
        places = g.op("Range", zero, total, one)
        self._places = g.op("Range", g.op("Sub", total, count), total, one)
        own = g.op("Unsqueeze", self._places, self._ints(1))
        allowed = g.op("LessOrEqual", places, own)
        if self._window is not None:
            first = g.op("Sub", own, g.constant(self._window, np.int64))
            allowed = g.op("And", allowed, g.op("Greater", places, first))
        is_token = g.op("Cast", self._mask, to=int(ir.DataType.BOOL))
        return g.op("And", allowed, g.op("Unsqueeze", is_token, self._ints(1, 2)))

    def _rotation(self) -> tuple[ir.Value, ir.Value]:
        """Return cosines and sines of the new tokens' positions, ``[batch, 1, sequence, size]``."""
        g = self._g
        match self._positions:
            case "input":
                at = g.input("position_ids", ir.DataType.INT64, ["batch", "sequence"])
            case "mask":
                counts = g.op("CumSum", self._mask, g.constant(1, np.int64))
                at = g.op("Gather", counts, self._places, axis=1)
                at = g.op("Sub", at, g.constant(1, np.int64))
            case "places":
                at = g.op("Unsqueeze", self._places, self._ints(0))
        table = g.tensor("speeds", self._speeds().astype(np.float32))
        at = g.op("Cast", g.op("Unsqueeze", at, self._ints(1, 3)), to=int(ir.DataType.FLOAT))
        angles = g.op("Mul", at, table)
        angles = g.op("Concat", angles, angles, axis=-1)
        return g.op("Cos", angles), g.op("Sin", angles)

    def _attention(self, layer: int, x: ir.Value) -> ir.Value:
        g, prefix = self._g, f"model.layers.{layer}.self_attn"
        query = self._rotated(self._split(self._linear(f"{prefix}.q_proj", x), self._heads))
        key = self._rotated(self._split(self._linear(f"{prefix}.k_proj", x), self._kv_heads))
        value = self._split(self._linear(f"{prefix}.v_proj", x), self._kv_heads)
        key, value = self._cached(layer, "key", key), self._cached(layer, "value", value)
        scores = g.op("MatMul", query, g.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = g.op("Mul", scores, g.tensor("scale", np.float32([self._size**-0.5])))
        scores = g.op("Where", self._allowed, scores, g.tensor("far", np.float32([_FAR_BELOW])))
        mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
        mixed = g.op("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = g.op("Reshape", mixed, self._ints(0, 0, self._heads * self._size))
        return self._linear(f"{prefix}.o_proj", mixed)

    def _fused_attention(self, layer: int, x: ir.Value) -> ir.Value:
        g, prefix, kinds = self._g, f"model.layers.{layer}.self_attn", ("key", "value")
        shape = ["batch", self._kv_heads, "past", "size"]
        pasts = [g.input(f"past_key_values.{layer}.{k}", self._dtype, shape) for k in kinds]
        counts = g.op("ReduceSum", self._mask, self._ints(1), keepdims=0)
        last = g.op("Sub", counts, g.constant(1, np.int64))
        angles = np.arange(512)[:, None] * self._speeds()
        mixed, *presents = g.op_with(
            3,
            "GroupQueryAttention",
            *(self._linear(f"{prefix}.{name}_proj", x) for name in "qkv"),
            *pasts,
            g.op("Cast", last, to=int(ir.DataType.INT32)),
            g.op("Cast", self._length(self._mask), to=int(ir.DataType.INT32)),
            g.tensor("cos", np.cos(angles).astype(np.float32)),
            g.tensor("sin", np.sin(angles).astype(np.float32)),
            domain=MICROSOFT,
            num_heads=self._heads,
            kv_num_heads=self._kv_heads,
            do_rotary=1,
        )
        for kind, present in zip(kinds, presents, strict=True):
            g.output(present, f"present.{layer}.{kind}", self._dtype, shape)
        return self._linear(f"{prefix}.o_proj", mixed)

    def _speeds(self) -> Any:
        half = self._size // 2
        return self._theta ** (-np.arange(half, dtype=np.float64) / half)

    def _cached(self, layer: int, kind: str, new: ir.Value) -> ir.Value:
        """Append to the cache; return it with a head for each head of the query."""
        g = self._g
        shape = ["batch", self._kv_heads, "past", self._size]
        past = g.input(f"past_key_values.{layer}.{kind}", self._dtype, shape)
        new = g.op("Cast", new, to=int(self._dtype))
        present = g.op("Concat", past, new, axis=2)
        g.output(present, f"present.{layer}.{kind}", self._dtype, shape)
        whole = g.op("Cast", present, to=int(ir.DataType.FLOAT))
        groups = self._ints(1, 1, self._heads // self._kv_heads, 1, 1)
        whole = g.op("Expand", g.op("Unsqueeze", whole, self._ints(2)), groups)
        return g.op("Reshape", whole, self._ints(0, self._heads, -1, self._size))

    def _mlp(self, prefix: str, x: ir.Value) -> ir.Value:
        g = self._g
        gate = self._linear(f"{prefix}.gate_proj", x)
        gate = g.op("Mul", gate, g.op("Sigmoid", gate))
        return self._linear(
            f"{prefix}.down_proj", g.op("Mul", gate, self._linear(f"{prefix}.up_proj", x))
        )

    def _norm(self, module: str, x: ir.Value) -> ir.Value:
        g = self._g
        mean = g.op("ReduceMean", g.op("Mul", x, x), self._ints(-1))
        root = g.op("Sqrt", g.op("Add", mean, g.tensor("eps", np.float32([self._eps]))))
        return g.op("Mul", g.op("Div", x, root), self._weight(f"{module}.weight"))

    def _linear(self, module: str, x: ir.Value) -> ir.Value:
        g, weight = self._g, self._source.read(f"{module}.weight").T
        if self._block_size is not None:
            return self._four_bits(module, x, self._block_size)
        if not self._is_quantised:
            return g.op("MatMul", x, g.tensor(f"{module}.transposed", np.ascontiguousarray(weight)))
        scale = np.float32(np.abs(weight).max() / 63)
        codes = np.rint(weight / scale).astype(np.int8)
        rows, step, zero = g.op_with(3, "DynamicQuantizeLinear", x)
        product = g.op("MatMulInteger", rows, g.tensor(f"{module}.codes", codes), zero)
        product = g.op("Cast", product, to=int(ir.DataType.FLOAT))
        step = g.op("Mul", step, g.tensor(f"{module}.step", scale.reshape(1)))
        return g.op("Mul", product, step)

    def _four_bits(self, module: str, x: ir.Value, block_size: int) -> ir.Value:
        weight = self._source.read(f"{module}.weight")
        blocks = nearest_blocks(weight, block_size)
        return self._g.op(
            "MatMulNBits",
            x,
            self._g.tensor(f"{module}.codes", blocks.codes),
            self._g.tensor(f"{module}.scales", blocks.scales),
            domain=MICROSOFT,
            K=weight.shape[1],
            N=len(weight),
            bits=4,
            block_size=block_size,
        )

    def _rotated(self, x: ir.Value) -> ir.Value:
        g = self._g
        first, second = g.op_with(2, "Split", x, self._ints(*[self._size // 2] * 2), axis=-1)
        turned = g.op("Concat", g.op("Neg", second), first, axis=-1)
        return g.op("Add", g.op("Mul", x, self._cos), g.op("Mul", turned, self._sin))

    def _split(self, x: ir.Value, heads: int) -> ir.Value:
        x = self._g.op("Reshape", x, self._ints(0, 0, heads, self._size))
        return self._g.op("Transpose", x, perm=[0, 2, 1, 3])

    def _length(self, x: ir.Value) -> ir.Value:
        return self._g.op("Gather", self._g.op("Shape", x), self._g.constant(1, np.int64))

    def _weight(self, name: str) -> ir.Value:
        return self._g.tensor(name, self._source.read(name))

    def _ints(self, *values: int) -> ir.Value:
        return self._g.constant(values, np.int64)


def write_config(folder: Path, **fields: Any) -> None:
    """Change fields of an export's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
