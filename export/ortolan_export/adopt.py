"""Makes a bundle of another exporter's graph, without changing what it computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ortolan_export.config import Config
from ortolan_export.errors import ExportError
from ortolan_export.existing import ExistingExport, find_export
from ortolan_export.finishing import (
    checked_tokenizer,
    golden_prompts,
    source_digest,
    verified,
    within_vocabulary,
    write_texts,
)
from ortolan_export.foreign import (
    ForeignGraph,
    choose_context_length,
    load_graph,
    may_have_windows,
    quantises_rows_together,
    read_graph,
)
from ortolan_export.fourbits import EXACT_BLOCK_SIZE
from ortolan_export.plaincopy import external_files, weight_bytes, write_plain
from ortolan_export.probing import Probe
from ortolan_export.progress import Report, counting, say_nothing
from ortolan_export.running import translated_errors
from ortolan_runtime.bundle import Manifest, new_folder, write_manifest
from ortolan_runtime.version import __version__

Check = Callable[[Path, Manifest], None]  # raises VerificationError

_SHARED_SCALE = "DynamicQuantizeLinear gives the activations of all rows one scale"


def adopt(
    source: Path,
    out: Path,
    *,
    graph: str | None = None,
    name: str | None = None,
    context_length: int | None = None,
    report: Report = say_nothing,
) -> Manifest:
    """Write a bundle of the export in the folder ``source`` to ``out`` and return its manifest.

    ``graph`` names the graph's file where there are several, ``name`` defaults to the folder's own,
    ``context_length`` to the model's. ``source`` stays as it is; a bundle already at ``out`` is
    replaced in the last moment. ``report`` is told (stage, units done, units in all). Raises
    ExportError, BundleError.
    """
    found = find_export(source, graph)
    if name is not None:
        found = msgspec.structs.replace(found, name=name)
    return adopt_export(found, out, context_length=context_length, report=report)


def adopt_export(
    found: ExistingExport,
    out: Path,
    *,
    context_length: int | None,
    report: Report,
    check: Check | None = None,
) -> Manifest:
    """Write a bundle of an export that was found; raises what ``check`` does of the bundle."""
    model = load_graph(found.graph)
    config = Config(found.config, origin=found.config_file.name)
    foreign = read_graph(model, config)
    _check_blocks(foreign)
    length = choose_context_length(config, context_length)
    texts = within_vocabulary(found.texts, foreign.vocab_size)
    found = msgspec.structs.replace(found, texts=texts)
    manifest = _describe(found, config, foreign, length)
    tokenizer = checked_tokenizer(texts, manifest.vocab_size)
    prompts = golden_prompts(tokenizer, manifest.context_length)
    made_of = found.weights or (found.graph, *external_files(model, found.graph.parent))
    has_windows = may_have_windows(config)
    reason = _SHARED_SCALE if quantises_rows_together(model) else None
    count = counting(report, "writing weights", weight_bytes(model))
    with new_folder(out) as folder:
        write_plain(model, found.graph.parent, folder, count)
        write_texts(folder, texts)
        report("probing the graph", 0, 1)
        with translated_errors():
            manifest = Probe(folder, manifest).settle(
                may_write_in_place=foreign.writes_in_place,
                may_have_windows=has_windows,
                why_rows_meet=reason,
            )
        report("probing the graph", 1, 1)
        digest = source_digest([found.config_file, *made_of], report)
        manifest = msgspec.structs.replace(manifest, source_digest=digest)
        manifest = verified(folder, manifest, prompts, report)
        if check is not None:
            check(folder, manifest)
        return write_manifest(folder, manifest)


def _check_blocks(foreign: ForeignGraph) -> None:
    """Raise ExportError for 4-bit layers whose rows are known to feel how many there are.

    The probe's tolerance would let the differences pass: they are of the last bits.
    """
    size = foreign.int4_block_size
    if foreign.int4_accuracy_level == 4 and size is not None and size > EXACT_BLOCK_SIZE:
        raise ExportError(
            f"4-bit layers at accuracy_level 4 must have blocks of at most {EXACT_BLOCK_SIZE}, got "
            f"{size}: the last of an odd number of rows would round otherwise than among others; "
            "choose another graph by --graph, or make one with `ortolan export`"
        )


def _describe(
    found: ExistingExport, config: Config, foreign: ForeignGraph, length: int
) -> Manifest:
    return Manifest(
        name=found.name,
        architecture=config.text("model_type", otherwise="unknown"),
        source_digest="",
        precision=foreign.precision,
        int4_accuracy_level=foreign.int4_accuracy_level,
        int4_block_size=foreign.int4_block_size,
        context_length=length,
        vocab_size=foreign.vocab_size,
        layers=foreign.layers,
        kv_heads=foreign.kv_heads,
        head_size=foreign.head_size,
        kv_layout="concat",
        kv_dtype=foreign.kv_dtype,
        # Kernels for one row round otherwise in most formats, and on other processors than this.
        single_row_exact=False,
        masked_graph=foreign.names,
        bos_token_id=found.texts.bos_token_id,
        eos_token_ids=found.texts.eos_token_ids,
        generation_defaults=found.texts.generation_defaults,
        exporter_version=__version__,
    )
