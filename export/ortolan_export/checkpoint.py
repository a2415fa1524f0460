"""Reads a Hugging Face model directory: config.json, safetensors, tokenizer and chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

# Registers bfloat16 with numpy, without which safetensors cannot hand out such tensors.
import ml_dtypes  # noqa: F401
import numpy as np
import safetensors
from tokenizers import Tokenizer

from ortolan_export.config import Config
from ortolan_export.errors import SourceError
from ortolan_export.source import Float32, SourceRows, Texts
from ortolan_runtime.bundle import GenerationDefaults

_FLOAT_TYPES = frozenset({"F32", "F16", "BF16", "F64"})
_INDEX_NAME = "model.safetensors.index.json"
# Models of text and images, whose text part is a decoder under this prefix.
_TEXT_AND_IMAGES = frozenset({"gemma3", "mistral3"})
_TEXT_PREFIX = "language_model."


class HuggingFaceCheckpoint:
    """A model directory as ``save_pretrained`` writes it, in one file or in shards.

    Of a model of text and images it is the text part alone, as if there were nothing else.
    Raises SourceError when a file is missing or damaged, before any weight is read.
    """

    origin = "config.json"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        _refuse_adapter(path)
        config = read_json(path / "config.json")
        model_type = Config(config).text("model_type")
        self._prefix = _TEXT_PREFIX if model_type in _TEXT_AND_IMAGES else ""
        weight_files = _weight_files(path)
        self.files: Sequence[Path] = (path / "config.json", *weight_files)
        self._home: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.unreadable: dict[str, str] = {}
        for file in weight_files:
            self._list_tensors(file)
        self.config: Mapping[str, Any] = self._text_part(config) if self._prefix else config

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Return rows ``start`` to ``stop`` of a tensor as float32."""
        with _open(self._home[name]) as file:
            rows = file.get_slice(self._prefix + name)[start:stop]
        return cast(Float32, np.ascontiguousarray(rows, dtype=np.float32))

    def read_quantised(self, name: str, start: int, stop: int) -> SourceRows | None:
        """Return None: every tensor is in floating point."""
        return None

    def texts(self) -> Texts:
        """Return the tokenizer, the chat template and the special tokens."""
        return read_texts(self.path, self.config)

    def _list_tensors(self, path: Path) -> None:
        with _open(path) as file:
            for stored in file.keys():
                if not stored.startswith(self._prefix):
                    continue
                name, piece = stored.removeprefix(self._prefix), file.get_slice(stored)
                if piece.get_dtype() not in _FLOAT_TYPES and piece.get_shape():
                    known = ", ".join(sorted(_FLOAT_TYPES))
                    self.unreadable[name] = (
                        f"{path}: tensor {name} must be one of {known}, got {piece.get_dtype()}; "
                        "export the checkpoint before it was quantised"
                    )
                    continue
                self._home[name] = path
                self.shapes[name] = tuple(piece.get_shape())

    def _text_part(self, config: Mapping[str, Any]) -> dict[str, Any]:
        part = config.get("text_config")
        if not isinstance(part, dict):
            raise SourceError(f"{self.path / 'config.json'}: text_config must be an object")
        # The flags of the whole and of the part do not always agree.
        return {**part, "tie_word_embeddings": "lm_head.weight" not in self.shapes}


def _refuse_adapter(path: Path) -> None:
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        raise SourceError(
            f"{path} is an adapter, without the model that it adapts; "
            "merge the two with merge_and_unload and save the result"
        )


def read_texts(path: Path, config: Mapping[str, Any]) -> Texts:
    """Return what a model directory says about text. Raises SourceError."""
    tokenizer_file = path / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise SourceError(
            f"{path} has no tokenizer.json; "
            "save the tokenizer with its fast (tokenizers) implementation"
        )
    tokenizer = _read_text(tokenizer_file)
    settings = _read_optional_config(path / "tokenizer_config.json")
    generation = _read_optional_config(path / "generation_config.json")
    special = _SpecialTokens(load_tokenizer(tokenizer, tokenizer_file), settings)
    configs = (generation, Config(config))
    return Texts(
        tokenizer=tokenizer,
        chat_template=_chat_template(path, settings),
        bos_token_id=special.bos(*configs),
        eos_token_ids=special.eos(*configs),
        generation_defaults=_generation_defaults(generation),
    )


def _chat_template(path: Path, settings: Config) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return _read_text(file)
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates; the default one is for chat
        named = (entry for entry in template if isinstance(entry, dict))
        template = next((e.get("template") for e in named if e.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise settings.wrong("chat_template", "must be a string or a list of named ones", template)
    return template


class _SpecialTokens:
    """Finds BOS and EOS ids in generation config, config and tokenizer config."""

    def __init__(self, tokenizer: Tokenizer, settings: Config) -> None:
        self._tokenizer = tokenizer
        self._settings = settings

    def bos(self, *configs: Config) -> int | None:
        """Return the id that the first of ``configs`` names, else the tokenizer's."""
        for ids in (_ids(config, "bos_token_id") for config in configs):
            if ids:
                return ids[0]
        return self._id_of("bos_token")

    def eos(self, *configs: Config) -> tuple[int, ...]:
        """Return every id that any of ``configs`` or the tokenizer names, in rising order."""
        found = {token_id for config in configs for token_id in _ids(config, "eos_token_id")}
        own = self._id_of("eos_token")
        return tuple(sorted(found | ({own} if own is not None else set())))

    def _id_of(self, field: str) -> int | None:
        token = self._settings.get(field)
        text = token.get("content") if isinstance(token, dict) else token
        return self._tokenizer.token_to_id(text) if isinstance(text, str) else None


def load_tokenizer(content: str, origin: Path | str) -> Tokenizer:
    """Return the tokenizer that ``content``, a tokenizer.json, describes. Raises SourceError."""
    try:
        return Tokenizer.from_str(content)
    except Exception as exc:  # the library raises nothing narrower
        raise SourceError(f"{origin} is no tokenizer that can be loaded ({exc})") from exc


def _weight_files(path: Path) -> tuple[Path, ...]:
    index = path / _INDEX_NAME
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise SourceError(f"{index}: weight_map must be an object of tensor names and files")
        files = tuple(path / name for name in sorted({Path(str(v)).name for v in shards.values()}))
    else:
        files = tuple(sorted(path.glob("*.safetensors")))
    if not files:
        raise SourceError(
            f"{path} holds no *.safetensors; convert its weights with save_pretrained"
        )
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise SourceError(f"{missing} is missing, though {_INDEX_NAME} names it; download it again")
    return files


def _open(path: Path) -> Any:
    try:
        return safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, OSError) as exc:
        raise SourceError(f"{path} is damaged ({exc}); download it again") from exc


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise SourceError(f"{path} cannot be read ({exc})") from exc


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises SourceError."""
    if not path.is_file():
        raise SourceError(
            f"{path.parent} has no {path.name}: it is no Hugging Face model directory"
        )
    try:
        content = json.loads(_read_text(path))
    except (json.JSONDecodeError, RecursionError) as exc:
        raise SourceError(f"{path} is no JSON ({exc})") from exc
    if not isinstance(content, dict):
        raise SourceError(f"{path} must hold a JSON object")
    return content


def _read_optional_config(path: Path) -> Config:
    return Config(read_json(path) if path.is_file() else {}, origin=path.name)


def _ids(config: Config, field: str) -> list[int]:
    value = config.get(field)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
        raise config.wrong(field, "must be a token's id or a list of ids", value)
    return ids


def _generation_defaults(generation: Config) -> GenerationDefaults:
    def number(field: str) -> float | None:
        return generation.number(field) if generation.has(field) else None

    top_k = number("top_k")
    return GenerationDefaults(
        temperature=number("temperature"),
        top_k=None if top_k is None else int(top_k),
        top_p=number("top_p"),
        repetition_penalty=number("repetition_penalty"),
    )
