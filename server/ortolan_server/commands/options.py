"""Options that several commands take, and what their values may be."""

from __future__ import annotations

import argparse
import os
import re
import signal
from pathlib import Path
from typing import get_args

from ortolan_runtime.bundle import Bundle, Device, cache_directory, open_bundle
from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_server.default_model import default_bundle
from ortolan_server.terminal import interrupted_by, progress_line, say

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``512MiB``, ``2G`` or ``1000000``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a size such as 512MiB or 2GB, got {text!r}")
    number, unit, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** (" KMGT".index(unit.upper()) if unit else 0))


def parse_numbers(text: str) -> tuple[int, ...]:
    """Return whole numbers of at least 1 that are separated by commas."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"must be numbers >= 1 such as 1,4,8, got {text!r}")
    return numbers


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``."""
    parser.add_argument(
        "--threads", type=int, help="threads of the session (default: the cores at hand)"
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument(
        "--device",
        choices=get_args(Device),
        help="where to compute (default: the device that the bundle was made for)",
    )


def add_speculate(parser: argparse.ArgumentParser) -> None:
    """Add ``--speculate``."""
    parser.add_argument(
        "--speculate",
        action="store_true",
        help="guess ahead while one sequence decodes: faster on text that repeats itself, "
        "but no longer the same bits in any company",
    )


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how a bundle is come by."""
    parser.add_argument("--offline", action="store_true", help="fetch nothing")
    parser.add_argument(
        "--verify", action="store_true", help="check every digest of the bundle, changed or not"
    )


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``engine_options_of`` reads."""
    defaults = EngineOptions()
    add = parser.add_argument
    add(
        "--slots", type=int, default=defaults.slots, help="sequences at once (default: %(default)s)"
    )
    add_threads(parser)
    add(
        "--prefill-chunk",
        type=int,
        default=defaults.prefill_chunk,
        metavar="TOKENS",
        help="prompt tokens between two decode steps (default: %(default)s)",
    )
    add(
        "--kv-memory",
        type=parse_size,
        metavar="SIZE",
        help="bound on the KV cache, as 2GiB (default: every slot at full context, "
        "at most half of the free memory)",
    )
    add_device(parser)
    add(
        "--spin",
        action="store_true",
        help="let threads wait busily without end; for cores of one's own",
    )
    add_speculate(parser)
    add(
        "--relaxed",
        action="store_true",
        help="a little faster where one sequence decodes in int4 or fp32, but no longer the same "
        "bits in any company",
    )


def engine_options_of(arguments: argparse.Namespace, queue_limit: int) -> EngineOptions:
    """Return what ``add_engine_options`` asked for. Raises InvalidParameter."""
    return EngineOptions(
        slots=arguments.slots,
        threads=arguments.threads,
        prefill_chunk=arguments.prefill_chunk,
        queue_limit=queue_limit,
        kv_memory_bytes=arguments.kv_memory,
        device=arguments.device,
        spin=arguments.spin,
        speculate=arguments.speculate,
        relaxed=arguments.relaxed,
    )


def bundle_of(arguments: argparse.Namespace) -> Path:
    """Return the bundle that was named, else the default one."""
    return arguments.bundle or default_path(arguments)


def default_path(arguments: argparse.Namespace) -> Path:
    """Return the default model's bundle, made if it is not there. Raises OrtolanError."""
    with interrupted_by(signal.SIGTERM):  # which would leave a model half unpacked in the cache
        return default_bundle(cache_directory(os.environ), offline=arguments.offline, say=say)


def open_engine(arguments: argparse.Namespace, options: EngineOptions) -> Engine:
    """Return an engine of the bundle that was named. Raises OrtolanError."""
    return Engine.start(checked_bundle(bundle_of(arguments), verify=arguments.verify), options)


def checked_bundle(path: Path, *, verify: bool) -> Bundle:
    """Return the bundle at ``path``; a bar shows how far its digests are, which may take long.

    ``verify`` checks them even if nothing changed. Raises BundleError.
    """
    size = sum(file.stat().st_size for file in path.glob("*") if file.is_file())
    done = 0
    with progress_line() as show:

        def report(more: int) -> None:
            nonlocal done
            done += more
            show(done >> 20, size >> 20, f"MiB of {path.name} checked")

        return open_bundle(
            path, cache=cache_directory(os.environ), always_verify=verify, progress=report
        )
