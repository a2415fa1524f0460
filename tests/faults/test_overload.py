"""More than the server can take: what does not fit is told so at once, what fits is served."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from figures import running
from serving import Server, serving, wait_until
from sockets import completion, connect, exchange, is_closed, read_answer, request

HEALTH_WITHIN_S = 0.25


def test_what_is_beyond_the_queue_is_a_429_at_once(server: Server) -> None:
    """With the time after which to try again; the others do not notice."""
    with connect(server) as holder:
        holder.sendall(completion(n=72, max_tokens=60_000))
        wait_until(lambda: running(server) == 72)
        started = time.monotonic()
        answer = exchange(server, completion())
        assert time.monotonic() - started < 0.5
        assert answer is not None
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.error["code"] == "overloaded"
    wait_until(lambda: running(server) == 0)


def test_an_idle_connection_is_closed_after_its_time(babbling_bundle: Path) -> None:
    """A time of less than a second is not rounded to none."""
    with serving(babbling_bundle, idle_timeout_s=0.9) as server, connect(server) as idle:
        for _ in range(2):
            idle.sendall(request("GET", "/health"))
            answer = read_answer(idle)
            assert answer is not None
            assert answer.status == 200
            time.sleep(0.2)
        assert is_closed(idle)


def test_sixty_four_streams_are_held_while_health_answers(server: Server) -> None:
    """On two slots; every stream has its end."""
    raw = completion(stream=True, max_tokens=100)
    connections = [connect(server) for _ in range(64)]
    with ThreadPoolExecutor(64) as pool:
        for connection in connections:
            connection.sendall(raw)
        answers = [pool.submit(read_answer, connection) for connection in connections]
        times = []
        while not all(answer.done() for answer in answers):
            times.append(_health_time(server))
        bodies = [answer.result() for answer in answers]
    for connection in connections:
        connection.close()
    assert all(body is not None and body.body.endswith(b"data: [DONE]\n\n") for body in bodies)
    assert len(times) > 5
    # The machine itself may be busy: one in twenty may be late.
    assert sorted(times)[int(len(times) * 0.95)] < HEALTH_WITHIN_S


def test_as_many_ids_as_a_body_holds_do_not_hold_up_health(server: Server) -> None:
    """The largest body that is admitted, refused for its length."""
    body = {"model": "babbling", "prompt": [1] * 300_000}
    raw = request(body=json.dumps(body).encode())
    with connect(server) as connection, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: (connection.sendall(raw), read_answer(connection))[1])
        times = [_health_time(server) for _ in range(10)]
        found = answer.result()
    assert found is not None
    assert found.status == 400
    assert sorted(times)[-2] < HEALTH_WITHIN_S


def test_scores_of_a_long_prompt_in_a_stream_do_not_hold_up_health(server: Server) -> None:
    """They are 5 MB of JSON, and hardly anything else is done when they are known already."""
    prompt = "hello world and more text here. " * 500
    raw = completion(prompt=prompt, echo=True, logprobs=20, stream=True)
    assert exchange(server, raw) is not None
    started, times = time.monotonic(), []
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(exchange, server, raw)
        while not answer.done():
            times.append(_health_time(server))
    took = time.monotonic() - started
    found = answer.result()
    assert found is not None
    assert found.body.endswith(b"data: [DONE]\n\n")
    assert max(times) < took / 2


def _health_time(server: Server) -> float:
    started = time.monotonic()
    answer = exchange(server, request("GET", "/health"))
    assert answer is not None
    assert answer.status == 200
    return time.monotonic() - started
