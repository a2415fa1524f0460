"""``ortolan export``: makes a bundle from a model's weights."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from ortolan_export.commands.making import add_bundle_options, make
from ortolan_export.errors import ExportError, UnsupportedModel
from ortolan_export.progress import Report
from ortolan_export.source import BLOCK_SIZES, CACHE_DTYPES, PRECISIONS
from ortolan_export.targets import TARGETS, Engines
from ortolan_runtime.bundle import Manifest

EXAMPLES = """\
  ortolan export ./SmolLM2-135M-Instruct ./smollm2
  ortolan export ./model.Q4_1.gguf ./smollm2 --precision fp32
  ortolan export ./Llama-3.2-1B ./llama --context-length 8192 --name llama-3.2-1b
  ortolan export ./Llama-3.2-1B ./llama --for cuda
  ortolan export ./mpt-7b ./mpt --via optimum
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add = parser.add_argument
    add(
        "source",
        type=Path,
        metavar="SOURCE",
        help="a Hugging Face model directory (safetensors) or a GGUF file",
    )
    add_bundle_options(parser)
    add(
        "--precision",
        choices=PRECISIONS,
        help="how weights are stored and multiplied (default: int8, on a GPU fp16)",
    )
    add(
        "--for",
        dest="target",
        choices=tuple(TARGETS),
        default="cpu",
        help="the device to make the bundle for (default: %(default)s)",
    )
    add(
        "--via",
        choices=("native", "optimum"),
        default="native",
        help="native needs no torch; optimum knows more architectures, in fp32 for the CPU "
        "(default: %(default)s)",
    )
    _add_numbers(parser)
    _add_engines(parser)


def _add_numbers(parser: argparse.ArgumentParser) -> None:
    """Add how numbers are kept beyond what the precision says."""
    add = parser.add_argument
    add(
        "--int4-accuracy-level",
        type=int,
        choices=(0, 4),
        help="4 quantises the activations of 4-bit layers to 8 bits, twice as fast; "
        "0 leaves them in floating point (default: 4, on a GPU 0)",
    )
    add(
        "--int4-block-size",
        type=int,
        choices=BLOCK_SIZES,
        help="how many weights of a 4-bit layer share a scale; more are smaller and less close, at "
        "accuracy level 0 alone and not for a GGUF file's own blocks (default: 32)",
    )
    add(
        "--kv-dtype",
        choices=CACHE_DTYPES,
        help="how the KV cache is kept on a CPU; int8 takes a quarter of the memory "
        "(default: float32)",
    )


def _add_engines(parser: argparse.ArgumentParser) -> None:
    add, usual = parser.add_argument, Engines()
    add(
        "--engine-rows",
        type=int,
        metavar="N",
        help="for tensorrt: the most sequences that decode at once, the server's --slots "
        f"(default: {usual.rows})",
    )
    add(
        "--engine-chunk",
        type=int,
        metavar="N",
        help="for tensorrt: the most tokens of a prompt at once, the server's --prefill-chunk "
        f"(default: {usual.chunk})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Export, and say what was written. Raises ExportError's tree and OSError."""
    route = _via_optimum if arguments.via == "optimum" else _natively
    return make(arguments.out, partial(route, arguments))


def _natively(arguments: argparse.Namespace, report: Report) -> Manifest:
    # Imported here: its packages are an extra, and whoever lacks them gets one line about it.
    from ortolan_export.native import export

    try:
        return export(
            arguments.source,
            arguments.out,
            precision=arguments.precision,
            target=arguments.target,
            name=arguments.name,
            context_length=arguments.context_length,
            int4_accuracy_level=arguments.int4_accuracy_level,
            int4_block_size=arguments.int4_block_size,
            kv_dtype=arguments.kv_dtype,
            engines=_engines(arguments),
            report=report,
        )
    except UnsupportedModel as exc:
        if arguments.source.is_dir() and arguments.target == "cpu":
            raise UnsupportedModel(f"{exc}; `--via optimum` may know it") from exc
        raise


def _via_optimum(arguments: argparse.Namespace, report: Report) -> Manifest:
    from ortolan_export.via_optimum import export_via_optimum

    for flag, value, only in (
        ("--precision", arguments.precision, "fp32"),
        ("--for", arguments.target, "cpu"),
        ("--int4-accuracy-level", arguments.int4_accuracy_level, "left out"),
        ("--int4-block-size", arguments.int4_block_size, "left out"),
        ("--kv-dtype", arguments.kv_dtype, "float32"),
        ("--engine-rows", arguments.engine_rows, "left out"),
        ("--engine-chunk", arguments.engine_chunk, "left out"),
    ):
        if value not in (None, only):
            raise ExportError(f"{flag} must be {only} with --via optimum, got {value}")
    return export_via_optimum(
        arguments.source,
        arguments.out,
        name=arguments.name,
        context_length=arguments.context_length,
        report=report,
    )


def _engines(arguments: argparse.Namespace) -> Engines | None:
    """Return the sizes that TensorRT builds engines for, None where none were given."""
    given = {"rows": arguments.engine_rows, "chunk": arguments.engine_chunk}
    known = {name: value for name, value in given.items() if value is not None}
    return Engines(**known) if known else None
