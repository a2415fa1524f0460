"""Reads a GGUF file as if it were a Hugging Face directory: same names, orientation and fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
from gguf.quants import dequantize

from ortolan_export.errors import SourceError, UnsupportedModel
from ortolan_export.gguf_tokenizer import read_texts
from ortolan_export.source import Array, Float32, SourceRows, Texts

# GGUF's names for modules, and ours.
_OUTER_MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Whose Q and K rows llama.cpp's converter reorders; Mistral calls itself a llama there.
_PERMUTED_ARCHITECTURES = frozenset({"llama"})
_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
_ROPE_DIVISORS = "rope_freqs.weight"


class GGUFCheckpoint:
    """A model in one GGUF file, of any of the quantised types that the gguf package can undo."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _open(path)
        self.files: Sequence[Path] = (path,)
        self._architecture = self._text("general.architecture")
        if self._architecture not in _ARCHITECTURES:
            known = ", ".join(sorted(_ARCHITECTURES))
            raise UnsupportedModel(
                f"{path}: general.architecture must be one of {known}, "
                f"got {self._architecture!r}; this architecture is not supported"
            )
        self.name = path.stem
        self._tensors = {self._our_name(tensor.name): tensor for tensor in self._reader.tensors}
        self._divisors = self._tensors.pop(_ROPE_DIVISORS, None)
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(int(size) for size in reversed(tensor.shape))
            for name, tensor in self._tensors.items()
        }
        self.unreadable: Mapping[str, str] = {}
        self._refuse_unknown_types()
        self.config: Mapping[str, Any] = self._read_config()

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Return rows ``start`` to ``stop`` of a tensor as float32."""
        tensor = self._tensors[name]
        heads = self._permuted_heads(name)
        if heads is None:
            return self._rows(tensor, start, stop)
        return _unpermuted(self._rows(tensor, 0, None), heads)[start:stop]

    def read_quantised(self, name: str, start: int, stop: int) -> SourceRows | None:
        """Return rows of a matrix as the file has them, None for a floating-point type."""
        tensor = self._tensors[name]
        if tensor.data.dtype != np.uint8:
            return None
        heads = self._permuted_heads(name)
        rows = tensor.data if heads is None else _unpermuted(tensor.data, heads)
        return SourceRows(tensor.tensor_type.name, np.ascontiguousarray(rows[start:stop]))

    def texts(self) -> Texts:
        """Return the tokenizer, rebuilt from the file's vocabulary and merges."""
        return read_texts(self._fields(), str(self.path))

    def _rows(self, tensor: Any, start: int, stop: int | None) -> Float32:
        rows = dequantize(tensor.data[start:stop], tensor.tensor_type)
        return cast(Float32, np.ascontiguousarray(rows, dtype=np.float32))

    def _refuse_unknown_types(self) -> None:
        """Undo one row of every type, so that none fails in the middle of the export."""
        for tensor in {tensor.tensor_type: tensor for tensor in self._tensors.values()}.values():
            try:
                self._rows(tensor, 0, 1)
            except NotImplementedError as exc:
                raise UnsupportedModel(
                    f"{self.path}: tensor {tensor.name} has type {tensor.tensor_type.name}, which "
                    "is not supported; use a file quantised in another way"
                ) from exc

    def _permuted_heads(self, name: str) -> int | None:
        """Return the number of heads whose rows the file holds reordered, None for none."""
        if self._architecture not in _PERMUTED_ARCHITECTURES:
            return None
        if ".self_attn.q_proj." in name:
            return int(self.config["num_attention_heads"])
        if ".self_attn.k_proj." in name:
            return int(self.config["num_key_value_heads"])
        return None

    def _our_name(self, name: str) -> str:
        module, _, kind = name.rpartition(".")
        if module in _OUTER_MODULES:
            return f"{_OUTER_MODULES[module]}.{kind}"
        block, _, rest = module.partition(".")
        layer, _, inner = rest.partition(".")
        if block == "blk" and inner in _LAYER_MODULES:
            return f"model.layers.{layer}.{_LAYER_MODULES[inner]}.{kind}"
        return name  # whoever checks the tensors will refuse it by this name

    def _read_config(self) -> dict[str, Any]:
        heads = self._own_number("attention.head_count")
        hidden_size = self._own_number("embedding_length")
        embedding = self.shapes.get("model.embed_tokens.weight")
        if embedding is None:
            raise SourceError(f"{self.path} has no tensor token_embd.weight; it is incomplete")
        config = {
            "model_type": self._architecture,
            "hidden_size": hidden_size,
            "intermediate_size": self._own_number("feed_forward_length"),
            "num_hidden_layers": self._own_number("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._own("attention.head_count_kv", heads),
            "head_dim": self._own("attention.key_length", hidden_size // heads),
            "vocab_size": embedding[0],
            "max_position_embeddings": self._own_number("context_length"),
            "rms_norm_eps": self._own_number("attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": "lm_head.weight" not in self.shapes,
            "hidden_act": "silu",
            "rope_parameters": self._rope_parameters(),
        }
        self._refuse_odd_rotation(config)
        return config

    def _rope_parameters(self) -> dict[str, Any]:
        parameters = {"rope_theta": self._own("rope.freq_base", 10000.0)}
        kind = self._own("rope.scaling.type", "none")
        if self._divisors is not None:
            divisors = dequantize(self._divisors.data, self._divisors.tensor_type)
            return {**parameters, "rope_type": "divisors", "divisors": divisors.tolist()}
        if kind == "none":
            return parameters
        if self._own("rope.scaling.attn_factor", 1.0) != 1.0:
            raise UnsupportedModel(
                f"{self.path}: {self._architecture}.rope.scaling.attn_factor must be 1.0, "
                f"got {self._own('rope.scaling.attn_factor', 1.0)}"
            )
        parameters |= {"rope_type": kind, "factor": self._own_number("rope.scaling.factor")}
        original = self._own("rope.scaling.original_context_length", None)
        if original is not None:
            parameters["original_max_position_embeddings"] = original
        return parameters

    def _refuse_odd_rotation(self, config: Mapping[str, Any]) -> None:
        rotated = self._own("rope.dimension_count", config["head_dim"])
        if rotated != config["head_dim"]:
            raise UnsupportedModel(
                f"{self.path}: {self._architecture}.rope.dimension_count must be the size of a "
                f"head, {config['head_dim']}, got {rotated}"
            )

    def _fields(self) -> dict[str, Any]:
        return {name: field.contents() for name, field in self._reader.fields.items()}

    def _text(self, name: str) -> str:
        field = self._reader.fields.get(name)
        value = None if field is None else field.contents()
        if not isinstance(value, str):
            raise SourceError(f"{self.path}: {name} must be a string, got {value!r}")
        return value

    def _own(self, name: str, otherwise: Any) -> Any:
        field = self._reader.fields.get(f"{self._architecture}.{name}")
        return otherwise if field is None else field.contents()

    def _own_number(self, name: str) -> Any:
        value = self._own(name, None)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise SourceError(
                f"{self.path}: {self._architecture}.{name} must be a number > 0, got {value!r}"
            )
        return value


def _open(path: Path) -> gguf.GGUFReader:
    try:
        return gguf.GGUFReader(path)
    except Exception as exc:  # the package raises whatever its parsing runs into
        raise SourceError(f"{path} is no complete GGUF file ({exc}); download it again") from exc


def _unpermuted(rows: Array, heads: int) -> Array:
    """Undo llama.cpp's order of a head's rows, which pairs neighbours, back to two halves."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))
