"""``ortolan serve``: serves a bundle over HTTP until it is told to end."""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from pathlib import Path

from ortolan_runtime.engine import Engine
from ortolan_server.commands.options import (
    add_engine_options,
    add_source_options,
    engine_options_of,
    open_engine,
)
from ortolan_server.serve_flags import add_server_flags, settings_of
from ortolan_server.terminal import say

EXAMPLES = """\
  ortolan serve
  ortolan serve ./my-bundle --port 9000 --slots 32
  ORTOLAN_API_KEY=secret ortolan serve ./my-bundle --host 0.0.0.0
  ortolan serve --offline --kv-memory 2GiB
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument(
        "bundle",
        nargs="?",
        type=Path,
        metavar="BUNDLE",
        help="the bundle's folder (default: SmolLM2-135M-Instruct, fetched once)",
    )
    add_server_flags(parser)
    add_engine_options(parser)
    add_source_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve, and return the exit code. Raises OrtolanError."""
    from ortolan_server.listening import listen
    from ortolan_server.logs import configure_logging
    from ortolan_server.sd_notify import notifier
    from ortolan_server.serve import run_server

    configure_logging(arguments.log_format)
    settings = settings_of(arguments, os.environ)
    with closing(listen(settings)) as listener:
        options = engine_options_of(arguments)
        engine = open_engine(arguments, options)
        say(_summary(engine))
        try:
            return run_server(
                engine,
                settings,
                listener,
                load=lambda path: Engine.open(path, options),
                notify=notifier(os.environ),
            )
        finally:
            engine.close()


def _summary(engine: Engine) -> str:
    """Return what is served and what it may take, in one line."""
    manifest, statistics = engine.manifest, engine.statistics()
    tokens = statistics.kv_budget_tokens
    gigabytes = tokens * manifest.kv_bytes_per_token / 1e9
    return (
        f"{manifest.name} ({manifest.precision}): {statistics.slots} slots, context "
        f"{engine.context_length}, KV cache of at most {tokens} tokens ({gigabytes:.1f} GB)"
    )
