"""Finds what other exporters have left in a folder: the graph, and the texts beside it.

optimum writes ``model.onnx`` (old versions ``decoder_model_merged.onnx``), repositories for the
browser ``onnx/model_q4.onnx`` and its like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ortolan_export.checkpoint import read_json, read_texts
from ortolan_export.errors import SourceError, UnsupportedModel
from ortolan_export.source import Texts

_FOLDERS = ("", "onnx")
# In this order, where nobody says which.
_USUAL_NAMES = ("model.onnx", "decoder_model_merged.onnx")
_GENAI_NAME = "genai_config.json"


class ExistingExport(msgspec.Struct, frozen=True, kw_only=True):
    """An export as it was found: ``config`` in the form of a config.json.

    ``weights`` are the files that the graph was made from, where they are there.
    """

    name: str
    graph: Path
    config: Mapping[str, Any]
    config_file: Path
    texts: Texts
    weights: Sequence[Path] = ()


def find_export(folder: Path, wanted: str | None = None) -> ExistingExport:
    """Return the export in ``folder``; ``wanted`` names its graph where there are several.

    Raises SourceError, and UnsupportedModel for an encoder-decoder.
    """
    if not folder.is_dir():
        raise SourceError(f"no export at {folder}: give the folder that holds its *.onnx")
    graphs = [file for part in _FOLDERS for file in sorted((folder / part).glob("*.onnx"))]
    if not graphs:
        raise SourceError(
            f"{folder} holds no *.onnx, neither itself nor in onnx/; "
            "a model's weights become a bundle by `ortolan export`"
        )
    config_file = folder / "config.json"
    if not config_file.is_file() and (folder / _GENAI_NAME).is_file():
        config_file = folder / _GENAI_NAME
    config = read_json(config_file)
    if config_file.name == _GENAI_NAME:
        config = _from_genai(config, config_file)
    _refuse_encoder(config, graphs)
    return ExistingExport(
        name=folder.resolve().name,
        graph=_choose(folder, graphs, wanted),
        config=config,
        config_file=config_file,
        texts=read_texts(folder, config),
    )


def _choose(folder: Path, graphs: Sequence[Path], wanted: str | None) -> Path:
    named = {str(file.relative_to(folder)): file for file in graphs}
    known = ", ".join(named)
    if wanted is not None:
        fitting = [file for name, file in named.items() if wanted in (name, file.name)]
        if not fitting:
            raise SourceError(f"--graph must be one of {known}, got {wanted!r}")
        return fitting[0]
    usual = [file for name in _USUAL_NAMES for file in graphs if file.name == name]
    if not usual and len(graphs) > 1:
        raise SourceError(f"{folder} holds several graphs: choose by --graph one of {known}")
    return usual[0] if usual else graphs[0]


def _refuse_encoder(config: Mapping[str, Any], graphs: Sequence[Path]) -> None:
    encoder = next((file.name for file in graphs if file.name.startswith("encoder")), None)
    if config.get("is_encoder_decoder") or encoder is not None:
        found = "is_encoder_decoder in config.json" if encoder is None else encoder
        raise UnsupportedModel(
            f"an encoder-decoder is not supported, as {found} says "
            f"{config.get('model_type')!r} is; it must be a decoder that continues its own text"
        )


def _from_genai(config: Mapping[str, Any], origin: Path) -> dict[str, Any]:
    """Return the fields of onnxruntime-genai's configuration by the names of a config.json."""
    model = config.get("model")
    decoder = model.get("decoder") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(decoder, dict):
        raise SourceError(f"{origin}: model and model.decoder must be objects")
    fields = {
        "model_type": model.get("type"),
        "vocab_size": model.get("vocab_size"),
        "max_position_embeddings": model.get("context_length"),
        "bos_token_id": model.get("bos_token_id"),
        "eos_token_id": model.get("eos_token_id"),
        "num_key_value_heads": decoder.get("num_key_value_heads"),
        "head_dim": decoder.get("head_size"),
    }
    return {name: value for name, value in fields.items() if value is not None}
