"""Requests with bytes changed at random: an answer or an end, never a failure of the server."""

from __future__ import annotations

import contextlib
import random
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_http_cases import CASES

from figures import running
from serving import Server, wait_until
from sockets import connect

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_SPICE = [b"\r\n", b"\x00", b":", b"{", b"]", b'"', b"\xff", b"0\r\n\r\n", b"9999999999", b"\\u"]


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """Return ``raw`` with one to four changes: bytes put in, taken out, doubled or cut off."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(raw) + 1)
        change = rng.randrange(5)
        if change == 0:
            raw = raw[:at] + rng.choice(_SPICE) + raw[at:]
        elif change == 1:
            raw = raw[:at] + raw[at + rng.randint(1, 8) :]
        elif change == 2:
            raw = raw[:at] + rng.randbytes(rng.randint(1, 4)) + raw[at + 2 :]
        elif change == 3:
            raw = raw[:at] + raw[max(0, at - 20) : at] + raw[at:]
        else:
            raw = raw[: max(at, 10)]
    return raw


def statuses(server: Server, raw: bytes) -> list[int]:
    """Return the statuses of all answers to ``raw``, which is all that the client sends."""
    received = b""
    with connect(server) as connection, contextlib.suppress(OSError):
        connection.sendall(raw)
        connection.settimeout(1.5)
        while part := connection.recv(65536):
            received += part
            if b"\r\n\r\n" in received and received[-1:] == b"}":
                break
    return [int(status) for status in _STATUS.findall(received)]


def _check(server: Server, count: int, seed: int) -> None:
    rng = random.Random(seed)
    seeds = [case.raw for case in CASES if len(case.raw) < 4000 and case.status != 408]
    sent = [mutated(rng.choice(seeds), rng) for _ in range(count)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda raw: statuses(server, raw), sent))
    assert all(status < 500 for answers in found for status in answers)
    assert server.process.poll() is None
    wait_until(lambda: running(server) == 0)
    assert not [line for line in server.log if "failed" in line or "Traceback" in line]


def test_mutated_requests_never_make_the_server_fail(strict_edges: Server) -> None:
    """A few, from a fixed seed."""
    _check(strict_edges, 150, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_ten_thousand_mutated_requests_never_make_the_server_fail(
    strict_edges: Server, seed: int
) -> None:
    """A thousand from each of ten seeds."""
    _check(strict_edges, 1000, seed=seed)
