"""Serves bundles, the first with an engine that fails: `serve_failing.py BUNDLES [WHERE]`.

BUNDLES are separated by colons. Its thread dies at its tenth step, or with `submit` as WHERE each
request meets a fault of our own. Pages of https://a.example may ask.
"""

from __future__ import annotations

import logging
import sys

from ortolan_runtime.engine import Engine
from ortolan_server.listening import listening
from ortolan_server.models import NamedEngine
from ortolan_server.serve import run_server
from ortolan_server.settings import ServerSettings


def main(bundles: str, where: str = "step") -> int:
    """Serve until the engine dies or a signal; return the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    engines = [Engine.open(bundle) for bundle in bundles.split(":")]
    engine = engines[0]
    real_step = engine._stepper.step
    steps = iter(range(10))

    def step() -> object:
        next(steps)  # StopIteration at last, as any fault of our own would be raised
        return real_step()

    def submit_all(*_: object) -> list[int]:
        raise ZeroDivisionError("a secret of the prompt")

    if where == "submit":
        engine.submit_all = submit_all  # type: ignore[method-assign,assignment]
    else:
        engine._stepper.step = step  # type: ignore[method-assign,assignment]
    settings = ServerSettings(port=0, cors_origins=("https://a.example",))
    with listening(settings) as listener:
        return run_server([NamedEngine(one) for one in engines], settings, listener)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
