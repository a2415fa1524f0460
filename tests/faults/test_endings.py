"""How the process ends when it is told to, and when its engine dies: nobody is left waiting."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from figures import running
from serving import Server, events, serving, wait_until
from sockets import completion, connect, exchange, is_closed, read_answer, request

FAILING = Path(__file__).with_name("serve_failing.py")


def test_sigterm_lets_streams_finish_and_refuses_what_is_new(babbling_bundle: Path) -> None:
    """On connections that were open before, too; the exit code is 0."""
    with serving(babbling_bundle, options={"slots": 2}, grace_s=20) as server:
        with connect(server) as stream, connect(server) as kept:
            stream.sendall(completion(stream=True, max_tokens=3000))
            wait_until(lambda: running(server) == 1)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: _status(server, "/ready") == 503)
            assert _status(server, "/health") == 200
            kept.sendall(completion())
            refusal = read_answer(kept)
            assert refusal is not None
            assert (refusal.status, refusal.error["code"]) == (503, "unavailable")
            refusal = exchange(server, completion("/openai/completions"))
            assert refusal is not None
            assert refusal.status == 500  # as Second's document has it
            answer = read_answer(stream)
        assert answer is not None
        assert events(answer.body)[-1] == "[DONE]"
        assert server.process.wait(10) == 0


def test_what_outlasts_the_grace_has_an_ending(babbling_bundle: Path) -> None:
    """Streams an error event, whether they run or wait; plain requests a 503."""
    with serving(babbling_bundle, options={"slots": 1}, grace_s=0.3) as server, ExitStack() as open:
        connections = [open.enter_context(connect(server)) for _ in range(6)]
        for index, connection in enumerate(connections):
            connection.sendall(completion(stream=index % 2 == 0, max_tokens=60_000))
        wait_until(lambda: running(server) == 6)
        server.process.send_signal(signal.SIGTERM)
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(read_answer, connections))
        assert server.process.wait(10) == 0
        for index, answer in enumerate(answers):
            assert answer is not None
            if index % 2:
                assert answer.status == 503
            else:
                assert json.loads(events(answer.body)[-1])["error"]["code"] == "unavailable"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(babbling_bundle: Path, number: signal.Signals) -> None:
    """Whatever the grace."""
    with serving(babbling_bundle, grace_s=60) as server, connect(server) as stream:
        stream.sendall(completion(stream=True, max_tokens=60_000))
        wait_until(lambda: running(server) == 1)
        server.process.send_signal(number)
        time.sleep(0.3)
        assert server.process.poll() is None
        started = time.monotonic()
        server.stop(number)
        assert time.monotonic() - started < 4
        assert is_closed(stream)


def test_idle_connections_do_not_hold_up_the_end(babbling_bundle: Path) -> None:
    """Nor do half-sent requests."""
    with serving(babbling_bundle, grace_s=0.5) as server, ExitStack() as open:
        held = [open.enter_context(connect(server)) for _ in range(10)]
        for connection in held[:5]:
            connection.sendall(completion()[:-5])
        time.sleep(0.1)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 5


def test_when_the_engine_dies_every_request_has_its_error(babbling_bundle: Path) -> None:
    """`/health` is a 503 meanwhile, and the process ends with 70 within five seconds."""
    command = [sys.executable, str(FAILING), str(babbling_bundle)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        server = Server(process, url, [])
        with connect(server) as slow, ThreadPoolExecutor(4) as pool:
            slow.sendall(completion()[:-1])  # keeps the process for its last words
            raw = [completion(stream=index < 2, max_tokens=1000) for index in range(4)]
            answers = [pool.submit(exchange, server, one) for one in raw]
            found = [answer.result() for answer in answers]
            died = time.monotonic()
            assert _status(server, "/health") == 503
            assert process.wait(5) == 70
            assert time.monotonic() - died < 5
        server.client.close()
        assert "the engine's thread has died" in process.stderr.read()
        for answer in found:
            assert answer is not None
            # What comes when it is dead already is refused before a stream begins.
            has_begun = answer.body.startswith(b"data:")
            last = events(answer.body)[-1] if has_begun else answer.body
            assert json.loads(last)["error"]["type"] == "server_error"


def _status(server: Server, path: str) -> int:
    answer = exchange(server, request("GET", path))
    assert answer is not None
    return answer.status
