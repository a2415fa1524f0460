"""``ortolan inspect``: shows what a bundle is, what it holds and what it needs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

EXAMPLES = """\
  ortolan inspect ./smollm2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")


def run(arguments: argparse.Namespace) -> int:
    """Write what the bundle is to stdout. Raises BundleError."""
    from ortolan_export.inspection import describe

    sys.stdout.write(f"{describe(arguments.bundle)}\n")
    return 0
