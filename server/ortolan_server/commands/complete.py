"""``ortolan complete``: completes a text in the terminal, without a server."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from ortolan_runtime.engine import EngineOptions
from ortolan_server.commands.options import (
    add_device,
    add_source_options,
    add_threads,
    open_engine,
)
from ortolan_server.terminal import fail

EXAMPLES = """\
  ortolan complete "The capital of France is" --temperature 0
  ortolan complete "Once upon a time" --bundle ./my-bundle --max-tokens 200 --seed 7
"""
# Options whose names are those of a request's fields.
_FIELDS = ("max_tokens", "temperature", "top_p", "top_k")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add = parser.add_argument
    add("text", metavar="TEXT", help="the beginning to complete")
    add("--bundle", type=Path, help="the bundle's folder (default: the default model)")
    add("--max-tokens", type=int, default=128, help="at most this many (default: %(default)s)")
    add("--temperature", type=float, default=0.7, help="0 is greedy (default: %(default)s)")
    add("--top-p", type=float, default=1.0, help="probability mass kept (default: %(default)s)")
    add("--top-k", type=int, default=0, help="tokens kept, 0 is all (default: %(default)s)")
    add("--seed", type=int, help="the same seed gives the same text (default: random)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text")
    add_device(parser)
    add_threads(parser)
    add_source_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the completion to stdout as it comes. Raises OrtolanError."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    options = EngineOptions(slots=1, threads=arguments.threads, device=arguments.device)
    with open_engine(arguments, options) as engine:
        fields = {name: getattr(arguments, name) for name in _FIELDS}
        seed = int.from_bytes(os.urandom(7)) if arguments.seed is None else arguments.seed
        for event in engine.generate(
            arguments.text, **fields, seed=seed, stop=tuple(arguments.stop)
        ):
            sys.stdout.write(event.text)
            sys.stdout.flush()
            if event.ending is not None and event.ending.error is not None:
                return fail(event.ending.error)
    sys.stdout.write("\n")
    return 0
