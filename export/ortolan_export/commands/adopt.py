"""``ortolan adopt``: makes a bundle of a graph that another exporter has written."""

from __future__ import annotations

import argparse
from pathlib import Path

from ortolan_export.commands.making import add_bundle_options, make
from ortolan_export.progress import Report
from ortolan_runtime.bundle import Manifest

EXAMPLES = """\
  ortolan adopt ./gpt2-onnx ./gpt2
  ortolan adopt ./Qwen2.5-0.5B-Instruct ./qwen --graph model_q4.onnx
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add = parser.add_argument
    add(
        "source",
        type=Path,
        metavar="DIR",
        help="a folder with *.onnx (or onnx/*.onnx), config.json and tokenizer.json",
    )
    add_bundle_options(parser)
    add("--graph", metavar="FILE", help="the graph to take where there are several (model_q4.onnx)")


def run(arguments: argparse.Namespace) -> int:
    """Adopt, and say what was written. Raises ExportError's tree and OSError."""

    def adopt(report: Report) -> Manifest:
        # Imported here: its packages are an extra, and whoever lacks them gets one line about it.
        from ortolan_export.adopt import adopt as adopt_folder

        return adopt_folder(
            arguments.source,
            arguments.out,
            graph=arguments.graph,
            name=arguments.name,
            context_length=arguments.context_length,
            report=report,
        )

    return make(arguments.out, adopt)
