"""Known faults of other servers when clients leave or send too much (cases A-LIFE-*)."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from figures import figures, running
from serving import Json, Server, serving, wait_until
from sockets import connect, request


@pytest.fixture(scope="module")
def endless(babbling_bundle: Path) -> Iterator[Server]:
    """Give a server with one slot and a model that talks for many seconds."""
    with serving(babbling_bundle, options={"slots": 1}) as server:
        yield server


def long_body(server: Server, *, is_streamed: bool, prompt: str = "Write a long story.") -> Json:
    """Return a request that takes far longer than any test waits."""
    return server.body(prompt, max_tokens=60_000, temperature=1, stream=is_streamed)


def send(server: Server, body: Json) -> socket.socket:
    """Send a request on a socket of its own and return it."""
    connection = connect(server)
    connection.sendall(request(body=json.dumps(body).encode()))
    return connection


def short_latency_s(server: Server) -> float:
    """Return how long a request for one token takes."""
    start = time.monotonic()
    server.complete("x", max_tokens=1)
    return time.monotonic() - start


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_frees_its_slot(endless: Server, is_streamed: bool) -> None:
    """A-LIFE-01: the one slot serves the next client at once, 20 times over."""
    for _ in range(20):
        connection = send(endless, long_body(endless, is_streamed=is_streamed))
        if is_streamed:
            assert connection.recv(64).startswith(b"HTTP/1.1 200")
        else:
            wait_until(lambda: running(endless) == 1)
        connection.close()
        assert short_latency_s(endless) < 2.0


def test_a_client_that_resets_or_half_closes_frees_its_slot(endless: Server) -> None:
    """A-LIFE-01, the other ways to leave."""
    linger = b"\1\0\0\0\0\0\0\0"
    for _ in range(5):
        connection = send(endless, long_body(endless, is_streamed=True))
        connection.recv(64)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.close()
        assert short_latency_s(endless) < 2.0
        connection = send(endless, long_body(endless, is_streamed=False))
        wait_until(lambda: running(endless) == 1)
        connection.shutdown(socket.SHUT_WR)
        assert short_latency_s(endless) < 2.0
        connection.close()


def test_a_client_that_leaves_the_queue_or_during_prefill_is_forgotten(endless: Server) -> None:
    """A-LIFE-01: prompts of 60,000 tokens, one running and several waiting."""
    prompt = "x" * 60_000
    body = long_body(endless, is_streamed=False, prompt=prompt) | {"max_tokens": 5000}
    connections = [send(endless, body) for _ in range(4)]
    wait_until(lambda: running(endless) == 4)
    for connection in reversed(connections):
        connection.close()
    assert short_latency_s(endless) < 2.0


def test_a_pipelined_request_does_not_hide_that_the_client_left(endless: Server) -> None:
    """A-LIFE-01: uvicorn would keep both running."""
    for _ in range(3):
        connection = send(endless, long_body(endless, is_streamed=False))
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        wait_until(lambda: running(endless) == 1)
        connection.close()
        assert short_latency_s(endless) < 2.0


@pytest.mark.slow
def test_memory_does_not_grow_with_clients_that_leave(endless: Server) -> None:
    """A-LIFE-01, memory: 100 aborts against 10."""
    sizes = []
    for count in (10, 90):
        for _ in range(count):
            connection = send(endless, long_body(endless, is_streamed=True))
            connection.recv(64)
            connection.close()
        short_latency_s(endless)
        sizes.append(figures(endless)["process_resident_memory_bytes"])
    assert sizes[1] < 1.05 * sizes[0]


def test_a_prompt_of_a_megabyte_does_not_hold_up_others(endless: Server) -> None:
    """A-LIFE-02, against what the machine does to the same watcher while nothing is asked."""
    prompt = "a b " * 250_000
    gaps: list[float] = []
    stop = threading.Event()
    watcher = threading.Thread(target=_watch_health, args=(endless, gaps, stop))
    watcher.start()
    try:
        time.sleep(1.5)
        quiet = max(gaps)
        for _ in range(2):
            error = endless.refused(endless.body(prompt, max_tokens=1))
            assert error["code"] == "context_length_exceeded"
    finally:
        stop.set()
        watcher.join()
    assert len(gaps) > 3
    assert max(gaps) < 0.5 + 3 * quiet


def _watch_health(server: Server, gaps: list[float], stop: threading.Event) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        while not stop.is_set():
            start = time.monotonic()
            assert client.get("/health").status_code == 200
            gaps.append(time.monotonic() - start)
            time.sleep(0.02)
