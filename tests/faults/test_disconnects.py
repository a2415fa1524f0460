"""Clients that leave, in every way and at every moment: what they held is free at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from figures import figures, running
from serving import Server, wait_until
from sockets import completion, connect, is_closed, request

# A step of this model takes a few ms; 100 ms are promised, the rest is for a busy machine.
FREE_WITHIN_S = 1.0
LONG = {"max_tokens": 60_000}
STREAM = completion(stream=True, **LONG)
PLAIN = completion(**LONG)
MANY = completion(n=2, **LONG)
PREFILL = completion(prompt=[1, 2, 3, 4] * 8000, max_tokens=1000)
LEFT = 'ortolan_requests_total{route="/v1/completions",status="499"}'
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
CHILD = """
import socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(sys.stdin.buffer.read())
print("sent", flush=True)
time.sleep(60)
"""

Leave = Callable[[socket.socket], None]


def by_fin(connection: socket.socket) -> None:
    """Close; what was received is read first, since else the kernel resets."""
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while connection.recv(65536):
            pass
    connection.close()


def by_reset(connection: socket.socket) -> None:
    """Reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    connection.close()


def by_half_close(connection: socket.socket) -> None:
    """Say that nothing more will be sent, and go on listening."""
    connection.shutdown(socket.SHUT_WR)


def behind_a_pipelined_request(connection: socket.socket) -> None:
    """Send one more request, then close."""
    connection.sendall(request("GET", "/health"))
    connection.close()


def behind_many_pipelined_requests(connection: socket.socket) -> None:
    """Send more requests than a connection may, and do not even close."""
    with contextlib.suppress(OSError):
        for _ in range(50):
            connection.sendall(request("GET", "/health"))


def with_garbage(connection: socket.socket) -> None:
    """Send what is no HTTP behind the request."""
    connection.sendall(b"\x00\x00\r\n\r\n")


WAYS = [
    by_fin,
    by_reset,
    by_half_close,
    behind_a_pipelined_request,
    behind_many_pipelined_requests,
    with_garbage,
]


@pytest.fixture
def idle(server: Server) -> Iterator[Server]:
    """Give the server with nothing running, before and after."""
    wait_until(lambda: running(server) == 0)
    yield server
    wait_until(lambda: running(server) == 0)


def assert_freed(server: Server, left: int = 0) -> None:
    """Assert that no more than ``left`` sequences run or wait, soon."""
    started = time.monotonic()
    wait_until(lambda: running(server) == left)
    assert time.monotonic() - started < FREE_WITHIN_S


@pytest.mark.parametrize("leave", WAYS, ids=lambda leave: leave.__name__)
@pytest.mark.parametrize("raw", [STREAM, PLAIN, MANY], ids=["stream", "plain", "two choices"])
def test_a_client_that_leaves_frees_its_rows(idle: Server, raw: bytes, leave: Leave) -> None:
    """While they decode."""
    with connect(idle) as connection:
        connection.sendall(raw)
        wait_until(lambda: figures(idle)["ortolan_running_sequences"] > 0)
        leave(connection)
        assert_freed(idle)


@pytest.mark.parametrize("leave", WAYS[:4], ids=lambda leave: leave.__name__)
def test_a_client_that_leaves_while_its_prompt_is_read_frees_its_row(
    idle: Server, leave: Leave
) -> None:
    """The prompt is 32,000 tokens long."""
    with connect(idle) as connection:
        connection.sendall(PREFILL)
        wait_until(lambda: running(idle) == 1)
        leave(connection)
        assert_freed(idle)


@pytest.mark.parametrize("leave", WAYS[:4], ids=lambda leave: leave.__name__)
@pytest.mark.parametrize("raw", [STREAM, PLAIN], ids=["stream", "plain"])
def test_a_client_that_leaves_while_it_waits_leaves_the_queue(
    idle: Server, raw: bytes, leave: Leave
) -> None:
    """Both slots are taken."""
    with connect(idle) as first, connect(idle) as connection:
        first.sendall(MANY)
        wait_until(lambda: running(idle) == 2)
        connection.sendall(raw)
        wait_until(lambda: figures(idle)["ortolan_waiting_sequences"] == 1)
        leave(connection)
        assert_freed(idle, left=2)


def test_a_client_that_is_killed_frees_its_row(idle: Server) -> None:
    """The kernel closes its sockets."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(idle.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(STREAM)
        child.stdin.close()
        assert child.stdout.readline()
        wait_until(lambda: running(idle) == 1)
        os.kill(child.pid, signal.SIGKILL)
        assert_freed(idle)


def test_pipelined_completions_of_a_client_that_leaves_never_run(idle: Server) -> None:
    """Not even the ones that had not begun."""
    before = figures(idle)[LEFT]
    with connect(idle) as connection:
        connection.sendall(PLAIN + PLAIN + PLAIN)
        wait_until(lambda: running(idle) == 1)
    assert_freed(idle)
    time.sleep(0.2)
    assert running(idle) == 0
    after = figures(idle)[LEFT]
    assert after == before + 1


def test_pipelined_requests_are_answered_in_order(idle: Server) -> None:
    """One after another on one connection."""
    with connect(idle) as connection:
        connection.sendall(completion() + request("GET", "/health") + completion())
        raw = b""
        while raw.count(b"HTTP/1.1 200") < 3 or not raw.endswith(b"}"):
            raw += connection.recv(65536)
    assert raw.index(b"text_completion") < raw.index(b'"ok"') < raw.rindex(b"text_completion")


def test_a_reader_that_stalls_is_dropped_and_its_rows_are_free(strict_edges: Server) -> None:
    """Half a second without reading is this server's patience."""
    raw = completion(stream=True, n=8, logprobs=20, **LONG)
    with connect(strict_edges, receive_buffer=4096) as connection:
        connection.sendall(raw)
        wait_until(lambda: running(strict_edges) == 8)
        wait_until(lambda: running(strict_edges) == 0, timeout_s=20)
        assert is_closed(connection)


def test_a_hundred_aborts_leave_nothing_behind(idle: Server) -> None:
    """Descriptors, slots, connections."""
    _storm(idle, 100)


@pytest.mark.slow
def test_a_storm_of_aborts_leaves_nothing_behind(idle: Server) -> None:
    """1,000 of them, and memory as before."""
    _storm(idle, 200)
    before = figures(idle)["process_resident_memory_bytes"]
    _storm(idle, 1000)
    assert figures(idle)["process_resident_memory_bytes"] < before + (16 << 20)


def _storm(server: Server, count: int) -> None:
    """Abort ``count`` requests at random moments in random ways; all that they held is free."""
    rng = random.Random(count)
    before = figures(server)
    for _ in range(count):
        with connect(server) as connection:
            raw = rng.choice([STREAM, PLAIN, MANY, PREFILL[: rng.randrange(len(PREFILL))]])
            connection.sendall(raw)
            time.sleep(rng.choice([0, 0, 0.001, 0.01]))
            rng.choice([by_fin, by_reset, behind_a_pipelined_request])(connection)
    wait_until(lambda: running(server) == 0)
    wait_until(
        lambda: figures(server)["process_open_fds"] <= before["process_open_fds"], timeout_s=20
    )
    assert figures(server)["ortolan_requests_in_flight"] == 1
    assert server.complete("x", max_tokens=1)
