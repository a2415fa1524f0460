"""What the commands that make bundles share: options, progress and the last line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from ortolan_export.progress import Report, progress_bar
from ortolan_runtime.bundle import Manifest


def add_bundle_options(parser: argparse.ArgumentParser) -> None:
    """Add OUT, and what a bundle of any source may be told about itself."""
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="the bundle's folder; a bundle there is replaced")
    add("--name", type=_name, help="the name the server shows (default: the source's own)")
    add(
        "--context-length",
        type=int,
        metavar="N",
        help="tokens that a prompt and its completion may take together (default: the model's)",
    )


def make(out: Path, export: Callable[[Report], Manifest]) -> int:
    """Run ``export`` with a progress bar and say what it wrote to ``out``; return the exit code."""
    try:
        with progress_bar() as report:
            manifest = export(report)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing was written") from None
    sys.stdout.write(f"{_summary(out, manifest)}\n")
    return 0


def _name(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError(f"must be printable text in one line, got {text!r}")
    return text


def _summary(out: Path, manifest: Manifest) -> str:
    size = sum(record.size for record in manifest.files) / 1e6
    return (
        f"{out}: {manifest.name}, {manifest.architecture}, {manifest.precision} "
        f"for {manifest.target}, context {manifest.context_length}, {size:.0f} MB"
    )
