"""Exports a checkpoint of a known architecture straight from its tensors, without torch."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from ortolan_export.architectures.family import Decoder
from ortolan_export.architectures.plan import plan_decoder
from ortolan_export.calibration import TEXT
from ortolan_export.checkpoint import HuggingFaceCheckpoint, load_tokenizer
from ortolan_export.errors import ExportError, SourceError
from ortolan_export.gguf import GGUFCheckpoint
from ortolan_export.precisions import Source, Storage, write_graphs
from ortolan_export.source import (
    AccuracyLevel,
    CheckedTensors,
    Checkpoint,
    NativePrecision,
    Report,
    Tensors,
    Texts,
    digest,
)
from ortolan_export.targets import (
    Engines,
    check_decoder,
    choose_precision,
    graph_names,
    plan_engines,
)
from ortolan_export.verify import record_golden
from ortolan_runtime.bundle import (
    CHAT_TEMPLATE_NAME,
    TOKENIZER_NAME,
    Device,
    Manifest,
    new_folder,
    write_manifest,
)
from ortolan_runtime.version import __version__

# Prose, numbers and code; any tokenizer turns them into something.
_GOLDEN_TEXTS = (
    "The capital of France is",
    "1, 2, 3, 4, 5, 6, 7,",
    "def add(a, b):\n    return a",
)


def export(
    source: Path,
    out: Path,
    *,
    precision: NativePrecision | None = None,
    target: Device = "cpu",
    name: str | None = None,
    context_length: int | None = None,
    int4_accuracy_level: AccuracyLevel | None = None,
    engines: Engines | None = None,
    report: Report | None = None,
) -> Manifest:
    """Write a bundle of the model at ``source`` to the folder ``out`` and return its manifest.

    ``source`` is a Hugging Face directory or a GGUF file; ``precision`` defaults to the first of
    the ``target``'s; ``name`` to the source's own; ``context_length`` to the model's;
    ``int4_accuracy_level`` 4, the default on the CPU, quantises the activations of 4-bit layers to
    8 bits, 0 leaves them; ``engines`` are those that TensorRT will build. A bundle already at
    ``out`` is replaced in the last moment. ``report`` is told (stage, units done, units in all).
    Raises ExportError, BundleError.
    """
    say = report or _say_nothing
    stored = _storage(target, precision, int4_accuracy_level)
    if engines is not None and target != "tensorrt":
        raise ExportError(f"--engine-rows and --engine-chunk are for tensorrt, got --for {target}")
    checkpoint = open_checkpoint(source)
    decoder = plan_decoder(checkpoint, context_length)
    check_decoder(decoder, target, stored.precision)
    texts = checkpoint.texts()
    tokenizer = _tokenizer(texts, decoder)
    prompts = _golden_prompts(tokenizer, decoder)
    manifest = _describe(decoder, texts, stored, name or checkpoint.name)
    if target == "tensorrt":
        plan = plan_engines(engines or Engines(), stored.precision)
        manifest = msgspec.structs.replace(manifest, engines=plan)
    prepared = Source(
        open=lambda stage: _counted(checkpoint, say, stage),
        decoder=decoder,
        manifest=manifest,
        calibration=tokenizer.encode(TEXT).ids,
        report=say,
    )
    with new_folder(out) as folder:
        write_graphs(folder, prepared, stored)
        _write_texts(folder, texts)
        manifest = msgspec.structs.replace(manifest, source_digest=_digest(checkpoint, say))
        return write_manifest(folder, _verified(folder, manifest, prompts, say))


def open_checkpoint(source: Path) -> Checkpoint:
    """Return the checkpoint at ``source``, by what is there. Raises SourceError."""
    if source.is_dir():
        return HuggingFaceCheckpoint(source)
    if source.is_file():
        return GGUFCheckpoint(source)
    raise SourceError(f"no model at {source}: give a Hugging Face directory or a GGUF file")


def _storage(
    target: Device, precision: NativePrecision | None, accuracy_level: AccuracyLevel | None
) -> Storage:
    """Return how weights are stored. Raises ExportError for what the target does not take."""
    chosen = choose_precision(target, precision)
    if target != "cpu" and accuracy_level == 4:
        raise ExportError(
            f"--int4-accuracy-level for {target} must be 0, got 4: activations stay in fp16 there"
        )
    level: AccuracyLevel = 0 if target != "cpu" else 4 if accuracy_level is None else accuracy_level
    return Storage(precision=chosen, target=target, int4_accuracy_level=level)


def _counted(checkpoint: Checkpoint, say: Report, stage: str) -> Tensors:
    """Return the checkpoint's tensors, checked and reported as they are read."""
    done, total = 0, sum(math.prod(shape) for shape in checkpoint.shapes.values())

    def count(elements: int) -> None:
        nonlocal done
        done += elements
        say(stage, min(done, total), total)

    return CheckedTensors(checkpoint, count)


def _write_texts(folder: Path, texts: Texts) -> None:
    (folder / TOKENIZER_NAME).write_text(texts.tokenizer, encoding="utf-8")
    if texts.chat_template is not None:
        (folder / CHAT_TEMPLATE_NAME).write_text(texts.chat_template, encoding="utf-8")


def _describe(decoder: Decoder, texts: Texts, stored: Storage, name: str) -> Manifest:
    return Manifest(
        name=name,
        architecture=decoder.architecture.model_type,
        source_digest="",
        precision=stored.precision,
        target=stored.target,
        int4_accuracy_level=stored.int4_accuracy_level if stored.has_int4 else None,
        context_length=decoder.context_length,
        vocab_size=decoder.vocab_size,
        layers=decoder.layers,
        kv_heads=decoder.kv_heads,
        head_size=decoder.head_size,
        kv_layout="static" if stored.target == "tensorrt" else "shared",
        kv_dtype=stored.kv_dtype,
        single_row_exact=stored.precision == "int8",
        graph=graph_names(decoder, stored.target),
        prefill_graph=stored.prefill_graph,
        bos_token_id=texts.bos_token_id,
        eos_token_ids=texts.eos_token_ids,
        generation_defaults=texts.generation_defaults,
        exporter_version=__version__,
    )


def _tokenizer(texts: Texts, decoder: Decoder) -> Tokenizer:
    """Return the tokenizer. Raises SourceError for one too large for the model."""
    tokenizer = load_tokenizer(texts.tokenizer, TOKENIZER_NAME)
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= decoder.vocab_size:
        raise SourceError(
            f"the tokenizer's largest id must be < {decoder.vocab_size}, the model's vocabulary, "
            f"got {largest}; the tokenizer belongs to another model"
        )
    return tokenizer


def _golden_prompts(tokenizer: Tokenizer, decoder: Decoder) -> list[list[int]]:
    """Return short prompts of at least 2 tokens."""
    room = max(2, decoder.context_length // 2)
    prompts = [tokenizer.encode(text).ids[:room] for text in _GOLDEN_TEXTS]
    return [ids if len(ids) >= 2 else [0, 0] for ids in prompts]


def _verified(folder: Path, manifest: Manifest, prompts: list[list[int]], say: Report) -> Manifest:
    """Return the manifest with what the graph was seen to compute, and by which version."""
    import onnxruntime

    say("checking the graph", 0, 1)
    golden = record_golden(folder, manifest, prompts)
    say("checking the graph", 1, 1)
    version = str(onnxruntime.__version__)
    return msgspec.structs.replace(manifest, golden=golden, onnxruntime_version=version)


def _digest(checkpoint: Checkpoint, say: Report) -> str:
    done, total = 0, sum(file.stat().st_size for file in checkpoint.files)

    def count(size: int) -> None:
        nonlocal done
        done += size
        say("hashing the source", done, total)

    return digest(checkpoint.files, count)


def _say_nothing(stage: str, done: int, total: int) -> None:
    pass
