"""``ortolan engine-build``: builds TensorRT's engines of a bundle once, ahead of serving it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ortolan_runtime.bundle import cache_directory, open_bundle

EXAMPLES = """\
  ortolan engine-build ./my-bundle
  ortolan serve ./my-bundle
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument(
        "bundle",
        type=Path,
        metavar="BUNDLE",
        help="the folder of a bundle made with `ortolan export --for tensorrt`",
    )


def run(arguments: argparse.Namespace) -> int:
    """Build, and list what was built. Raises OrtolanError."""
    from ortolan_runtime.enginebuild import build_engines

    bundle = open_bundle(arguments.bundle, cache=cache_directory(os.environ))
    for file in build_engines(bundle):
        sys.stdout.write(f"{file}: {file.stat().st_size / 1e6:.0f} MB\n")
    return 0
