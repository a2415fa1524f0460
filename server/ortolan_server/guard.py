"""Deadlines and limits below HTTP that uvicorn does not have, and disconnects that it misses.

A client has so long to send its header and its body, so many header bytes, and so long to read what
was sent. A pipelined request must not hide that the client has left. An offer to speak another
protocol must not cost a request its body, and HTTP/1.0 knows no chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ortolan_server.errors import INVALID_REQUEST, SERVER
from ortolan_server.responses import LINGER_S, encode
from ortolan_server.settings import ServerSettings

_PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_MAX_PIPELINED = 8


def guarded_protocol(settings: ServerSettings) -> type[HttpToolsProtocol]:
    """Return uvicorn's protocol class with the limits of ``settings``."""
    return type("GuardedProtocol", (_Guarded,), {"limits": settings})


class _Guarded(HttpToolsProtocol):
    limits: ServerSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._is_in_header = True
        self._is_refused = False
        self._is_repeating = False
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, "the server holds as many connections as it may")
            return
        self._arm(self.limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._forget_stall()
        super().connection_lost(exc)
        self._end_requests()  # uvicorn tells only the one that was received last

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_in_header:
            # An upper bound: the body's first bytes may be among them, so the end is looked for.
            self._header_bytes += len(data)
            too_many = self._header_bytes > self.limits.max_header_bytes
            if too_many and b"\r\n\r\n" not in data[: self.limits.max_header_bytes]:
                limit = self.limits.max_header_bytes
                self._refuse(431, f"the request's header must be <= {limit} bytes")
                return
        self._unset_keepalive_if_required()
        self._feed(data)

    def on_message_begin(self) -> None:
        if self._is_repeating:
            return
        self._is_in_header = True
        self._header_bytes = 0
        if self._deadline is None:
            self._arm(self.limits.header_timeout_s)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_repeating:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_repeating:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_repeating:
            return
        self._is_in_header = False
        self._arm(self.limits.body_timeout_s)
        super().on_headers_complete()
        if len(self.pipeline) > _MAX_PIPELINED:
            self.transport.abort()
        elif self.pipeline:
            # A paused transport would not notice that the client leaves.
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # only its head is complete: see _decline_upgrade
        self._disarm()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            seconds = self.limits.stalled_reader_timeout_s
            self._stall = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._forget_stall()
        super().resume_writing()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])
        except httptools.HttpParserError:
            self._refuse(400, "the request is no valid HTTP")

    def _decline_upgrade(self, rest: bytes) -> None:
        """Go on with ``rest`` as HTTP/1.1, behind the head of a request that offered more.

        Java's HttpClient offers HTTP/2 with every request. The parser takes what follows for the
        other protocol; a new one is told of the head without the offer, and finds the body.
        """
        lines = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._is_repeating = True
        self._feed(b"\r\n".join([b"POST / HTTP/1.1", *lines, b"", b""]))
        self._is_repeating = False
        if rest and not self._is_refused:
            self._feed(rest)

    def _end_requests(self) -> None:
        """Tell every request that nobody reads its answer any more; what it sends is dropped."""
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in (self._running, *waiting):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _forget_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if cycle.scope["http_version"] != "1.1":
            app = _without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(seconds, self._late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        self._refuse(408, "the request was not received in time")

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error, below the application, and close when the client has seen it.

        Closing at once would reset a connection on which more has been sent.
        """
        self._is_refused = True
        self._disarm()
        running = self._running
        if running is not None and running.response_started and not running.response_complete:
            self.transport.abort()  # a second answer would be read as part of the first
            return
        type = SERVER if status >= 500 else INVALID_REQUEST
        body = encode({"error": {"message": message, "type": type, "param": None, "code": None}})
        head = (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._end_requests()
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client may have left a moment ago
                self.transport.write_eof()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.close)


def _without_chunks(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """Return ``app`` for a client of HTTP/1.0, whose stream the end of the connection ends.

    uvicorn frames everything whose length is not known in chunks.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_stream = False

        async def send_plainly(message: Message) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                is_stream = all(name != b"content-length" for name, _ in message["headers"])
                cycle.chunked_encoding = False if is_stream else None
            elif is_stream:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plainly)

    return answer
