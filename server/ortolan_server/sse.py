"""Server-sent events: the bytes of a stream, and the headers that keep proxies from holding it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": waiting\n\n"
HEADERS = {
    # Without a charset Python's requests takes any text for ISO-8859-1.
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}

# Ends of lines to many clients' line readers, though not to server-sent events; and to JSON no more
# than characters of a string, which may be escaped.
_LINE_ENDS = [(character.encode(), b"\\u%04x" % ord(character)) for character in "\x85\u2028\u2029"]

_encoder = msgspec.json.Encoder()


def event(document: dict[str, Any]) -> bytes:
    """Return one event with ``document`` as its data."""
    # JSON escapes line breaks, so the data is one line.
    data = _encoder.encode(document)
    for character, escaped in _LINE_ENDS:
        data = data.replace(character, escaped)
    return b"data: " + data + b"\n\n"


def events(documents: Iterable[dict[str, Any]]) -> bytes:
    """Return several events in one piece, which costs one write."""
    return b"".join(event(document) for document in documents)
