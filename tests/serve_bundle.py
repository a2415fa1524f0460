"""Serves bundles in a process of its own, for tests: `serve_bundle.py BUNDLES OPTIONS SETTINGS`.

BUNDLES are separated by colons. OPTIONS and SETTINGS are the JSON of EngineOptions and
ServerSettings. The URL is logged to stderr.
"""

from __future__ import annotations

import logging
import sys

import msgspec

from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_server.listening import listening
from ortolan_server.models import NamedEngine
from ortolan_server.serve import run_server
from ortolan_server.settings import ServerSettings


def main(bundles: str, options: str, settings: str) -> int:
    """Serve until a signal; return the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    checked = msgspec.json.decode(settings, type=ServerSettings)
    engine_options = msgspec.json.decode(options, type=EngineOptions)
    with listening(checked) as listener:
        engines = [NamedEngine(Engine.open(path, engine_options)) for path in bundles.split(":")]
        return run_server(
            engines, checked, listener, lambda path, _: Engine.open(path, engine_options)
        )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
