"""Reads a server's ``/metrics``."""

from __future__ import annotations

import re

from serving import Server

_LINE = re.compile(r"^(ortolan_\w+|process_\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)


def figures(server: Server) -> dict[str, float]:
    """Return every figure, by its name with its labels as they are written."""
    text = server.client.get("/metrics").text
    return {name + (labels or ""): float(value) for name, labels, value in _LINE.findall(text)}


def running(server: Server) -> int:
    """Return how many sequences run or wait."""
    now = figures(server)
    return int(now["ortolan_running_sequences"] + now["ortolan_waiting_sequences"])
