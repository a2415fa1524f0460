"""Sending: JSON documents and streams over ASGI, and noticing that the client has left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
from starlette.types import Receive, Send

LINGER_S = 1.0

_encoder = msgspec.json.Encoder()
Headers = Mapping[str, str]


def encode(document: dict[str, Any]) -> bytes:
    """Return ``document`` as JSON."""
    return _encoder.encode(document)


async def send_json(
    send: Send, document: dict[str, Any], *, status: int = 200, headers: Headers | None = None
) -> None:
    """Send one JSON document as the whole response."""
    body = encode(document)
    await send(_start_of_json(body, status, headers or {}))
    await end_stream(send, body)


async def send_json_and_linger(
    send: Send, receive: Receive, document: dict[str, Any], *, status: int, headers: Headers
) -> None:
    """Send a JSON document while the client may still be sending its body, which is thrown away.

    Closing at once would reset the connection, and the answer could be lost with it.
    """
    body = encode(document)
    await send(_start_of_json(body, status, headers))
    await send_part(send, body)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (message := await receive())["type"] == "http.request":
                if not message.get("more_body", False):
                    break
    await end_stream(send)


async def start_stream(send: Send, headers: Headers) -> None:
    """Send the head of a stream's response."""
    await send(_start(200, headers))


async def send_part(send: Send, body: bytes) -> None:
    """Send a part of a stream."""
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def end_stream(send: Send, body: bytes = b"") -> None:
    """Send the last part of a stream."""
    await send({"type": "http.response.body", "body": body, "more_body": False})


@contextlib.asynccontextmanager
async def watching(receive: Receive, leave: Callable[[], None]) -> AsyncIterator[None]:
    """Call ``leave`` as soon as the client disconnects, while the body runs.

    A handler that only awaits its own work is never told by the server.
    """
    watcher = asyncio.create_task(_watch(receive, leave))
    try:
        yield
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


async def _watch(receive: Receive, leave: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    leave()


def _start_of_json(body: bytes, status: int, headers: Headers) -> dict[str, Any]:
    fixed = {"content-type": "application/json", "content-length": str(len(body))}
    return _start(status, {**fixed, **headers})


def _start(status: int, headers: Headers) -> dict[str, Any]:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": raw}
