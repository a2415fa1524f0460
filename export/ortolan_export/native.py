"""Exports a checkpoint of a known architecture straight from its tensors, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from ortolan_export.architectures.family import Decoder
from ortolan_export.architectures.plan import plan_decoder
from ortolan_export.checkpoint import HuggingFaceCheckpoint
from ortolan_export.errors import ExportError, SourceError
from ortolan_export.finishing import (
    checked_tokenizer,
    golden_prompts,
    source_digest,
    verified,
    within_vocabulary,
    write_texts,
)
from ortolan_export.fourbits import EXACT_BLOCK_SIZE, OWN_BLOCK_SIZE, own_blocks
from ortolan_export.gguf import GGUFCheckpoint
from ortolan_export.precisions import Source, Storage, write_graphs
from ortolan_export.progress import Report, counting, say_nothing
from ortolan_export.sample import TEXT
from ortolan_export.source import (
    INT4_PRECISIONS,
    AccuracyLevel,
    BlockSize,
    CacheDtype,
    CheckedTensors,
    Checkpoint,
    NativePrecision,
    Tensors,
    Texts,
    row_slices,
)
from ortolan_export.targets import (
    Engines,
    check_decoder,
    choose_precision,
    graph_names,
    plan_engines,
)
from ortolan_runtime.bundle import Device, EnginePlan, Manifest, new_folder, write_manifest
from ortolan_runtime.version import __version__


def export(
    source: Path,
    out: Path,
    *,
    precision: NativePrecision | None = None,
    target: Device = "cpu",
    name: str | None = None,
    context_length: int | None = None,
    int4_accuracy_level: AccuracyLevel | None = None,
    int4_block_size: BlockSize | None = None,
    kv_dtype: CacheDtype | None = None,
    engines: Engines | None = None,
    report: Report = say_nothing,
) -> Manifest:
    """Write a bundle of the model at ``source`` to the folder ``out`` and return its manifest.

    ``source`` is a Hugging Face directory or a GGUF file; ``precision`` defaults to the first of
    the ``target``'s; ``name`` to the source's own; ``context_length`` to the model's;
    ``int4_accuracy_level`` 4, the default on the CPU, quantises the activations of 4-bit layers to
    8 bits, 0 leaves them; ``int4_block_size``, by default 32, is how many of their weights share a
    scale, more only at level 0; ``kv_dtype`` int8 is for the CPU alone, and the default there is
    float32; ``engines`` are those that TensorRT will build. A bundle already at
    ``out`` is replaced in the last moment. ``report`` is told (stage, units done, units in all).
    Raises ExportError, BundleError.
    """
    stored = _storage(target, precision, int4_accuracy_level, int4_block_size, kv_dtype)
    plan = plan_engines(target, engines, stored.precision)
    checkpoint = open_checkpoint(source)
    decoder = plan_decoder(checkpoint, context_length)
    check_decoder(decoder, target, stored.precision)
    _check_own_blocks(decoder, checkpoint, stored)
    _check_tied_head(decoder, checkpoint)
    texts = within_vocabulary(checkpoint.texts(), decoder.vocab_size)
    tokenizer = checked_tokenizer(texts, decoder.vocab_size)
    prompts = golden_prompts(tokenizer, decoder.context_length)
    manifest = _describe(decoder, texts, stored, name=name or checkpoint.name, engines=plan)
    prepared = Source(
        open=lambda stage: _counted(checkpoint, report, stage),
        decoder=decoder,
        manifest=manifest,
        calibration=tokenizer.encode(TEXT).ids,
        report=report,
    )
    with new_folder(out) as folder:
        write_graphs(folder, prepared, stored)
        write_texts(folder, texts)
        manifest = msgspec.structs.replace(
            manifest, source_digest=source_digest(checkpoint.files, report)
        )
        return write_manifest(folder, verified(folder, manifest, prompts, report))


def open_checkpoint(source: Path) -> Checkpoint:
    """Return the checkpoint at ``source``, by what is there. Raises SourceError."""
    if source.is_dir():
        return HuggingFaceCheckpoint(source)
    if source.is_file():
        return GGUFCheckpoint(source)
    raise SourceError(
        f"no model at {source}: give a Hugging Face directory or a GGUF file; "
        "`hf download NAME --local-dir DIR` fetches one from the hub"
    )


def _storage(
    target: Device,
    precision: NativePrecision | None,
    accuracy_level: AccuracyLevel | None,
    block_size: BlockSize | None,
    kv_dtype: CacheDtype | None,
) -> Storage:
    """Return how weights are stored. Raises ExportError for what the target does not take."""
    chosen = choose_precision(target, precision)
    _refuse_int4_options(
        chosen, {"--int4-accuracy-level": accuracy_level, "--int4-block-size": block_size}
    )
    if target != "cpu" and accuracy_level == 4:
        raise ExportError(
            f"--int4-accuracy-level for {target} must be 0, got 4: activations stay in fp16 there"
        )
    level: AccuracyLevel = 0 if target != "cpu" else 4 if accuracy_level is None else accuracy_level
    if level == 4 and block_size not in (None, EXACT_BLOCK_SIZE):
        raise ExportError(
            f"--int4-block-size must be {EXACT_BLOCK_SIZE} at --int4-accuracy-level 4, got "
            f"{block_size}: the last of an odd number of rows would round otherwise than among "
            "others; add --int4-accuracy-level 0, or leave it out"
        )
    if target != "cpu" and kv_dtype is not None:
        raise ExportError(
            f"--kv-dtype must be left out for {target}, got {kv_dtype}: a GPU's cache has the type "
            "of its activations"
        )
    return Storage(
        precision=chosen,
        target=target,
        int4_accuracy_level=level,
        int4_block_size=32 if block_size is None else block_size,
        has_int8_cache=kv_dtype == "int8",
    )


def _refuse_int4_options(precision: NativePrecision, options: Mapping[str, int | None]) -> None:
    """Raise ExportError for an option of 4-bit layers where there are none."""
    if precision in INT4_PRECISIONS:
        return
    for option, value in options.items():
        if value is not None:
            raise ExportError(
                f"{option} {value} is for --precision {' or '.join(INT4_PRECISIONS)}, "
                f"got {precision}: leave it out"
            )


def _check_own_blocks(decoder: Decoder, checkpoint: Checkpoint, stored: Storage) -> None:
    """Raise ExportError where the source's own blocks, which are kept, have another size."""
    if not stored.has_int4 or stored.int4_block_size == OWN_BLOCK_SIZE:
        return
    outer = (decoder.names.embedding, decoder.names.head)
    named = (name.rpartition(".") for name, shape in checkpoint.shapes.items() if len(shape) == 2)
    modules = (module for module, _, kind in named if kind == "weight" and module not in outer)
    kind = own_blocks(CheckedTensors(checkpoint, lambda elements: None), modules)
    if kind is not None:
        raise ExportError(
            f"--int4-block-size must be {OWN_BLOCK_SIZE} for {checkpoint.origin}, "
            f"got {stored.int4_block_size}: its {kind} blocks are kept as they are; leave it out, "
            "or export the model's safetensors or a GGUF file in F16 or Q8_0"
        )


def _check_tied_head(decoder: Decoder, checkpoint: Checkpoint) -> None:
    """Raise SourceError where the checkpoint holds a tied head that is not the embedding."""
    names = decoder.names
    head, embedding = f"{names.head}.weight", f"{names.embedding}.weight"
    if not decoder.is_tied or head not in checkpoint.shapes:
        return
    tensors = CheckedTensors(checkpoint, lambda elements: None)
    for start, stop in row_slices(tensors, names.head):
        own, shared = (tensors.read(name, start, stop) for name in (head, embedding))
        if not np.array_equal(own, shared):
            raise SourceError(
                f"tensor {head} must equal {embedding}, as tie_word_embeddings is true; where the "
                "head is its own, set tie_word_embeddings to false in config.json"
            )


def _counted(checkpoint: Checkpoint, report: Report, stage: str) -> Tensors:
    """Return the checkpoint's tensors, checked and reported as they are read."""
    total = sum(math.prod(shape) for shape in checkpoint.shapes.values())
    return CheckedTensors(checkpoint, counting(report, stage, total))


def _describe(
    decoder: Decoder, texts: Texts, stored: Storage, *, name: str, engines: EnginePlan | None
) -> Manifest:
    return Manifest(
        name=name,
        architecture=decoder.architecture.model_type,
        source_digest="",
        precision=stored.precision,
        target=stored.target,
        engines=engines,
        int4_accuracy_level=stored.int4_accuracy_level if stored.has_int4 else None,
        int4_block_size=stored.int4_block_size if stored.has_int4 else None,
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
        rows_graph=stored.rows_graph,
        bos_token_id=texts.bos_token_id,
        eos_token_ids=texts.eos_token_ids,
        generation_defaults=texts.generation_defaults,
        exporter_version=__version__,
    )
