"""``ortolan bench``: measures a bundle on this machine."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import msgspec

from ortolan_runtime.bench import BenchOptions, as_table, measure
from ortolan_server.commands.options import (
    add_device,
    add_source_options,
    add_speculate,
    add_threads,
    bundle_of,
    parse_numbers,
)
from ortolan_server.terminal import progress_line

EXAMPLES = """\
  ortolan bench ./my-bundle
  ortolan bench ./my-bundle --batches 1,16 --temperature 0.8 --top-p 0.9 --json
"""
_COUNTS = (
    ("prompt_tokens", "length of the prompt that is prefilled"),
    ("context_tokens", "tokens before decoding starts"),
    ("decode_tokens", "tokens that each sequence decodes"),
    ("repetitions", "runs, of which the median counts"),
)
# Options whose names are those of BenchOptions' fields.
_FIELDS = (
    "batches",
    *(name for name, _ in _COUNTS),
    "device",
    "threads",
    "temperature",
    "top_p",
    "speculate",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    defaults = BenchOptions()
    add = parser.add_argument
    add("bundle", nargs="?", type=Path, metavar="BUNDLE", help="default: the default model")
    add(
        "--batches",
        type=parse_numbers,
        default=defaults.batches,
        metavar="N,N",
        help="sequences at once (default: 1,4,8,16)",
    )
    for name, meaning in _COUNTS:
        add(
            f"--{name.replace('_', '-')}",
            type=int,
            default=getattr(defaults, name),
            metavar="N",
            help=f"{meaning} (default: %(default)s)",
        )
    add_device(parser)
    add_threads(parser)
    add("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    add("--top-p", type=float, default=1.0, help="probability mass kept (default: %(default)s)")
    add("--json", action="store_true", help="print JSON instead of a table")
    add_speculate(parser)
    add_source_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the figures to stdout. Raises OrtolanError."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    options = BenchOptions(**{name: getattr(arguments, name) for name in _FIELDS})
    with progress_line() as show:
        figures = measure(bundle_of(arguments), options, show)
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(figures)).decode() + "\n")
    else:
        sys.stdout.write(as_table(figures))
    return 0
