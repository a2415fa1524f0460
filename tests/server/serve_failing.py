"""Serves a bundle with an engine whose thread dies at its tenth step: `serve_failing.py BUNDLE`."""

from __future__ import annotations

import logging
import sys

from ortolan_runtime.engine import Engine
from ortolan_server.models import NamedEngine
from ortolan_server.serve import run_server
from ortolan_server.settings import ServerSettings


def main(bundle: str) -> int:
    """Serve until the engine dies; return the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    engine = Engine.open(bundle)
    real_step = engine._stepper.step
    steps = iter(range(10))

    def step() -> object:
        next(steps)  # StopIteration at last, as any fault of our own would be raised
        return real_step()

    engine._stepper.step = step  # type: ignore[method-assign,assignment]
    return run_server([NamedEngine(engine)], ServerSettings(port=0))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
