"""Reads a server's ``/metrics``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from serving import Server

_LINE = re.compile(r"^(ortolan_\w+|process_\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'\w+="[^"]*"')


def figures(server: Server, model: str | None = None) -> dict[str, float]:
    """Return every figure, by its name with its labels as they are written.

    The label `model` is left out: figures of several models are added up, or those of ``model``
    alone are returned.
    """
    found: dict[str, float] = {}
    for name, labels, value in _series(server):
        own = [label for label in labels if label.startswith("model=")]
        if model is not None and own != [f'model="{model}"']:
            continue
        rest = ",".join(label for label in labels if label not in own)
        series = f"{name}{{{rest}}}" if rest else name
        found[series] = found.get(series, 0.0) + value
    return found


def running(server: Server) -> int:
    """Return how many sequences run or wait."""
    now = figures(server)
    return int(now["ortolan_running_sequences"] + now["ortolan_waiting_sequences"])


def _series(server: Server) -> Iterator[tuple[str, list[str], float]]:
    for name, labels, value in _LINE.findall(server.client.get("/metrics").text):
        yield name, _LABEL.findall(labels), float(value)
