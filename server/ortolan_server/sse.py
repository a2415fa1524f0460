"""Server-sent events: the bytes of a stream, and the headers that keep proxies from holding it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": waiting\n\n"
HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}

_encoder = msgspec.json.Encoder()


def event(document: dict[str, Any]) -> bytes:
    """Return one event with ``document`` as its data."""
    # JSON escapes line breaks, so the data is one line.
    return b"data: " + _encoder.encode(document) + b"\n\n"


def events(documents: Iterable[dict[str, Any]]) -> bytes:
    """Return several events in one piece, which costs one write."""
    return b"".join(event(document) for document in documents)
