"""Reads a GGUF file as if it were a Hugging Face directory: same names, orientation and fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
from gguf.quants import dequantize

from ortolan_export.errors import SourceError, UnsupportedModel
from ortolan_export.gguf_families import (
    LONG_DIVISORS,
    ROPE_DIVISORS,
    SHORT_DIVISORS,
    Metadata,
    find_family,
    read_config,
)
from ortolan_export.gguf_tokenizer import read_texts
from ortolan_export.source import Array, Float32, SourceRows, Texts


class GGUFCheckpoint:
    """A model in one GGUF file, of any of the quantised types that the gguf package can undo."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _open(path)
        self.files: Sequence[Path] = (path,)
        self.name = path.stem
        self.origin = path.name
        self._fields = _fields(self._reader, path)
        self._refuse_part()
        metadata = Metadata(path, self._fields, self._architecture())
        self._family = find_family(metadata)
        self._tensors = {self._our_name(tensor.name): tensor for tensor in self._reader.tensors}
        self._refuse_unknown_types()
        divisors = self._take_divisors()
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(int(size) for size in reversed(tensor.shape))
            for name, tensor in self._tensors.items()
        }
        self.unreadable: Mapping[str, str] = {}
        self.config: Mapping[str, Any] = read_config(
            self._family,
            metadata,
            vocab_size=self._vocab_size(),
            is_tied="lm_head.weight" not in self.shapes,
            divisors=divisors,
        )

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Return rows ``start`` to ``stop`` of a tensor as float32."""
        tensor = self._tensors[name]
        heads = self._permuted_heads(name)
        if heads is not None:
            return _unpermuted(self._rows(tensor, 0, None), heads)[start:stop]
        rows = self._rows(tensor, start, stop)
        if self._family.norm_offset and name.endswith("norm.weight"):
            return rows - np.float32(self._family.norm_offset)
        return rows

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
        return read_texts(self._fields, str(self.path))

    def _rows(self, tensor: Any, start: int, stop: int | None) -> Float32:
        rows = dequantize(tensor.data[start:stop], tensor.tensor_type)
        return cast(Float32, np.ascontiguousarray(rows, dtype=np.float32))

    def _refuse_part(self) -> None:
        parts = self._fields.get("split.count", 0)  # 0 in a file that was merged
        if isinstance(parts, int) and parts > 1:
            raise UnsupportedModel(
                f"{self.path} is one of {parts} parts; make one file of them with "
                "`llama-gguf-split --merge FIRST_PART OUT`"
            )

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
        if not self._family.is_permuted:
            return None
        if ".self_attn.q_proj." in name:
            return int(self.config["num_attention_heads"])
        if ".self_attn.k_proj." in name:
            return int(self.config["num_key_value_heads"])
        return None

    def _our_name(self, name: str) -> str:
        module, _, kind = name.rpartition(".")
        ours = self._family.module(module)
        # Whoever checks the tensors will refuse an unknown one by its own name.
        return name if ours is None else f"{ours}.{kind}"

    def _take_divisors(self) -> dict[str, Any]:
        """Return the rotary divisors that the file holds as tensors, which are no weights."""
        names = [n for n in (ROPE_DIVISORS, LONG_DIVISORS, SHORT_DIVISORS) if n in self._tensors]
        taken = {name: self._tensors.pop(name) for name in names}
        return {name: self._rows(tensor, 0, None).tolist() for name, tensor in taken.items()}

    def _architecture(self) -> str:
        value = self._fields.get("general.architecture")
        if not isinstance(value, str):
            raise SourceError(f"{self.path}: general.architecture must be a string, got {value!r}")
        return value

    def _vocab_size(self) -> int:
        embedding = self.shapes.get("model.embed_tokens.weight")
        if embedding is None:
            raise SourceError(f"{self.path} has no tensor token_embd.weight; it is incomplete")
        return embedding[0]


def _open(path: Path) -> gguf.GGUFReader:
    try:
        return gguf.GGUFReader(path)
    except Exception as exc:  # the package raises whatever its parsing runs into
        raise SourceError(f"{path} is no complete GGUF file ({exc}); download it again") from exc


def _fields(reader: gguf.GGUFReader, path: Path) -> dict[str, Any]:
    try:
        return {name: field.contents() for name, field in reader.fields.items()}
    except UnicodeDecodeError as exc:
        raise SourceError(f"{path} is damaged ({exc}); download it again") from exc


def _unpermuted(rows: Array, heads: int) -> Array:
    """Undo llama.cpp's order of a head's rows, which pairs neighbours, back to two halves."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))
