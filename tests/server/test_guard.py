"""Limits below HTTP in several pieces or connections; single requests are in the fault suite."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import Server, serving, wait_until

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def hasty(babbling_bundle: Path) -> Iterator[Server]:
    """Give a server with little patience."""
    patience = {"header_timeout_s": 0.8, "body_timeout_s": 0.4}
    with serving(babbling_bundle, max_header_bytes=4096, max_connections=20, **patience) as server:
        yield server


def connect(server: Server) -> socket.socket:
    """Return a connection."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def answer(connection: socket.socket) -> tuple[int, dict[str, object]]:
    """Return the status and the error of an answer that ends the connection."""
    raw = b""
    while part := connection.recv(65536):
        raw += part
    head, _, body = raw.partition(b"\r\n\r\n")
    error: dict[str, object] = json.loads(body)["error"]
    return int(head.split()[1]), error


def test_slow_bytes_do_not_extend_the_deadline(hasty: Server) -> None:
    """One byte a tenth of a second."""
    with connect(hasty) as connection:
        started = time.monotonic()
        connection.sendall(b"GET / HTTP/1.1\r\n")
        try:
            for _ in range(30):
                connection.sendall(b"a")
                time.sleep(0.1)
        except OSError:
            pass
        assert time.monotonic() - started < 2.5


@pytest.mark.parametrize("count", [1, 100])
def test_a_header_that_is_too_large_is_a_431(hasty: Server, count: int) -> None:
    """In one piece or in many."""
    with connect(hasty) as connection:
        big = b"x-big: " + b"a" * 8000
        for start in range(0, len(big), len(big) // count):
            connection.sendall((HEAD if start == 0 else b"") + big[start : start + 8000 // count])
        assert answer(connection)[0] == 431


def test_a_client_that_leaves_as_its_time_is_over_is_no_failure(babbling_bundle: Path) -> None:
    """A server that was held up finds bytes, the deadline and the client's end at once."""
    with serving(babbling_bundle, header_timeout_s=0.5) as server:
        connections = [connect(server) for _ in range(5)]
        for connection in connections:
            connection.sendall(b"GET ")
        assert server.client.get("/health").status_code == 200  # so that the deadlines are set
        server.process.send_signal(signal.SIGSTOP)
        try:
            for connection in connections:
                connection.sendall(b"/health")
                connection.close()
            time.sleep(0.6)
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert server.stop() == 0
    assert not [line for line in server.log if "Traceback" in line], server.log


def test_connections_over_the_limit_are_told_so(hasty: Server) -> None:
    """At once, with a 503 that is the server's fault."""
    held = [connect(hasty) for _ in range(25)]
    try:
        refused = [error for status, error in map(answer, held[-3:]) if status == 503]
        assert refused
        assert all(error["type"] == "server_error" for error in refused)
    finally:
        for connection in held:
            connection.close()
    wait_until(lambda: hasty.client.get("/health").status_code == 200)


def test_an_idle_connection_may_wait_between_requests(hasty: Server) -> None:
    """The header's deadline begins with the request, not with the end of the last one."""
    with connect(hasty) as connection:
        for _ in range(2):
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            raw = b""
            while not raw.endswith(b"}"):
                raw += connection.recv(4096)
            assert raw.startswith(b"HTTP/1.1 200")
            time.sleep(1.2)


def test_garbage_behind_a_request_does_not_get_into_its_answer(hasty: Server) -> None:
    """The stream is cut instead."""
    body = json.dumps(hasty.body("x", max_tokens=60_000, stream=True)).encode()
    with connect(hasty) as connection:
        connection.sendall(HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        connection.recv(64)
        connection.sendall(b"\x00\x00\r\n\r\n")
        raw = b""
        try:
            while part := connection.recv(65536):
                raw += part
        except ConnectionResetError:
            pass
    assert b"HTTP/1.1" not in raw


def test_expect_100_continue_is_answered(hasty: Server) -> None:
    """curl waits for it before it sends a large body."""
    body = json.dumps(hasty.body("x", max_tokens=1)).encode()
    with connect(hasty) as connection:
        head = f"expect: 100-continue\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(HEAD + head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_an_offer_of_http2_is_declined_and_the_connection_goes_on(babbling_bundle: Path) -> None:
    """The body arrives apart from the head; another request follows on the same connection."""
    body = json.dumps({"model": "babbling", "prompt": "x", "max_tokens": 1}).encode()
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    head = HEAD + b"content-length: %d\r\n" % len(body)
    with serving(babbling_bundle) as patient, connect(patient) as connection:
        connection.sendall(head + offer + b"\r\n" + body[:9])
        time.sleep(0.1)
        connection.sendall(body[9:] + head + b"connection: close\r\n\r\n" + body)
        raw = b""
        while part := connection.recv(65536):
            raw += part
    assert raw.count(b"HTTP/1.1 200 OK") == 2
    assert raw.count(b'"finish_reason":"length"') == 2


def test_a_stream_over_http_1_0_has_no_chunks(hasty: Server) -> None:
    """The end of the connection ends it."""
    body = json.dumps(hasty.body(max_tokens=3, stream=True)).encode()
    with connect(hasty) as connection:
        head = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")
        connection.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        raw = b""
        while part := connection.recv(65536):
            raw += part
    head, _, stream = raw.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert [part[:7] for part in stream.split(b"\n\n")] == [b"data: {"] * 3 + [b"data: [", b""]
