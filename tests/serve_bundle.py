"""Serves a bundle in a process of its own, for tests: `serve_bundle.py BUNDLE OPTIONS SETTINGS`.

OPTIONS and SETTINGS are the JSON of EngineOptions and ServerSettings. The URL is logged to stderr.
"""

from __future__ import annotations

import logging
import sys

import msgspec

from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_server.listening import listen
from ortolan_server.serve import run_server
from ortolan_server.settings import ServerSettings


def main(bundle: str, options: str, settings: str) -> int:
    """Serve until a signal; return the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    checked = msgspec.json.decode(settings, type=ServerSettings)
    listener = listen(checked)
    engine_options = msgspec.json.decode(options, type=EngineOptions)
    with Engine.open(bundle, engine_options) as engine:
        return run_server(engine, checked, listener, lambda path: Engine.open(path, engine_options))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
