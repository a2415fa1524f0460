"""``ortolan serve``: serves bundles over HTTP until it is told to end."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_server.bundles import (
    NamedPath,
    check_names,
    check_only_name,
    named_paths,
    shared_options,
)
from ortolan_server.commands.options import (
    add_engine_options,
    add_source_options,
    checked_bundle,
    default_path,
    engine_options_of,
)
from ortolan_server.configuration import Configurable, applied
from ortolan_server.serve_flags import add_server_flags, settings_of
from ortolan_server.terminal import say

if TYPE_CHECKING:
    from ortolan_server.models import NamedEngine, ServedEngine

EXAMPLES = """\
  ortolan serve
  ortolan serve ./my-bundle --port 9000 --slots 32
  ortolan serve ./my-bundle ./another-bundle
  ortolan serve small=./smollm2 large=./llama
  ORTOLAN_API_KEY=secret ortolan serve ./my-bundle --host 0.0.0.0
  ortolan serve --offline --kv-memory 2GiB
  ortolan serve --config ./ortolan.toml
  ORTOLAN_PORT=9000 ORTOLAN_SLOTS=32 ortolan serve ./my-bundle
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument(
        "bundles",
        nargs="*",
        default=[],
        metavar="BUNDLE",
        help="a bundle's folder, NAME=FOLDER, or a folder of bundles; several are served at once "
        "(default: SmolLM2-135M-Instruct, fetched once)",
    )
    add_server_flags(parser)
    add_engine_options(parser)
    parser.add_argument(
        "--queue-limit",
        type=int,
        default=EngineOptions().queue_limit,
        metavar="N",
        help="sequences that may wait; beyond it clients get 429 (default: %(default)s)",
    )
    add_source_options(parser)
    Configurable("serve", parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve, and return the exit code. Raises OrtolanError."""
    from ortolan_server.listening import listening
    from ortolan_server.logs import configure_logging
    from ortolan_server.sd_notify import notifier

    configurable: Configurable = arguments.configurable
    arguments = applied(configurable.settings(arguments, os.environ))
    configure_logging(arguments.log_format)
    settings = settings_of(arguments, os.environ)
    options = engine_options_of(arguments, arguments.queue_limit)
    with listening(settings) as listener, _engines(arguments, options) as engines:
        from ortolan_server.serve import run_server

        return run_server(
            engines, settings, listener, load=_replacement, notify=notifier(os.environ)
        )


@contextmanager
def _engines(arguments: argparse.Namespace, options: EngineOptions) -> Iterator[list[NamedEngine]]:
    """Give an engine of each bundle that was named; all are closed at the end."""
    paths = named_paths(arguments.bundles) or [NamedPath(default_path(arguments))]
    check_only_name(arguments.model_name, paths)
    bundles = [checked_bundle(named.path, verify=arguments.verify) for named in paths]
    # Before anything is loaded, which may take minutes.
    own_names = [bundle.manifest.name for bundle in bundles]
    check_names([path.name or own for path, own in zip(paths, own_names, strict=True)])
    # Loading a bundle leaves Python idle for the most part.
    Thread(target=import_module, args=("ortolan_server.serve",), daemon=True).start()
    engines: list[Engine] = []
    try:
        for bundle, share in zip(bundles, shared_options(bundles, options), strict=True):
            engines.append(Engine.start(bundle, share))
            say(_summary(engines[-1]))
        from ortolan_server.models import NamedEngine

        yield [NamedEngine(e, path.name) for e, path in zip(engines, paths, strict=True)]
    finally:
        for engine in engines:
            engine.close()


def _replacement(bundle: str, engine: ServedEngine) -> Engine:
    """Return an engine of another bundle, with the share of the machine that ``engine`` has."""
    assert isinstance(engine, Engine), "this command serves nothing else"
    return Engine.open(Path(bundle), engine.options)


def _summary(engine: Engine) -> str:
    """Return what is served and what it may take, in one line."""
    manifest, statistics = engine.manifest, engine.statistics()
    tokens = statistics.kv_budget_tokens
    gigabytes = tokens * manifest.kv_bytes_per_token / 1e9
    return (
        f"{manifest.name} ({manifest.precision}): {statistics.slots} slots, context "
        f"{engine.context_length}, KV cache of at most {tokens} tokens ({gigabytes:.1f} GB)"
    )
