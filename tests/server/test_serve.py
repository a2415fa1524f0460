"""How a server process begins and ends."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ortolan_runtime.errors import InvalidParameter
from ortolan_server.listening import ListenError, listen
from ortolan_server.settings import ServerSettings
from serving import Json, Server, events, serving, wait_until


def long_stream(server: Server, tokens: int = 60_000) -> Json:
    """Return the body of a stream that lasts; 60,000 tokens take many seconds."""
    return server.body("x", max_tokens=tokens, stream=True)


def test_a_stream_that_runs_when_the_end_is_ordered_is_finished(babbling_bundle: Path) -> None:
    """Meanwhile the server says that it is not ready, and takes nothing new."""
    with serving(babbling_bundle, grace_s=20) as server, ThreadPoolExecutor(1) as pool:
        body = long_stream(server, tokens=4000)
        running = pool.submit(server.raw_stream, "/v1/completions", body)
        wait_until(lambda: _is_busy(server))
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.client.get("/ready").status_code == 503)
        assert server.client.get("/health").status_code == 200
        error = server.refused(server.body("x"), status=503)
        assert error["code"] == "unavailable"
        assert server.refused(server.body("x"), path="/openai/completions", status=500)
        assert events(running.result())[-1] == "[DONE]"
        assert server.process.wait(10) == 0


def test_a_stream_that_outlasts_the_grace_ends_with_an_error(babbling_bundle: Path) -> None:
    """As an event, without [DONE]; a request that does not stream gets a 503."""
    with serving(babbling_bundle, grace_s=0.3) as server, ThreadPoolExecutor(2) as pool:
        body = long_stream(server)
        streamed = pool.submit(server.raw_stream, "/v1/completions", body)
        plain = pool.submit(server.post, "/v1/completions", body | {"stream": False})
        wait_until(lambda: _is_busy(server))
        time.sleep(0.2)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 5
        last = json.loads(events(streamed.result())[-1])
        assert last["error"]["code"] == "unavailable"
        assert plain.result().status_code == 503


def test_a_second_signal_ends_at_once(babbling_bundle: Path) -> None:
    """Whatever the grace."""
    with serving(babbling_bundle, grace_s=60) as server, ThreadPoolExecutor(1) as pool:
        running = pool.submit(_tolerant_stream, server)
        wait_until(lambda: _is_busy(server))
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert server.process.poll() is None
        started = time.monotonic()
        server.stop(signal.SIGINT)
        assert time.monotonic() - started < 4
        running.result()


def test_an_engine_that_dies_ends_the_process_with_70(babbling_bundle: Path) -> None:
    """Each request has its error first, so that a supervisor's restart is all that is missing."""
    script = Path(__file__).with_name("serve_failing.py")
    command = [sys.executable, str(script), str(babbling_bundle)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        body = {"model": "babbling", "prompt": "x", "max_tokens": 1000, "stream": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=20)
        last = json.loads(events(answer.content)[-1])
        assert last["error"]["type"] == "server_error"
        assert process.wait(5) == 70
        assert "the engine's thread has died" in process.stderr.read()


def test_a_port_in_use_is_one_line() -> None:
    """Before any model is loaded."""
    with listen(ServerSettings(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1 port {port}: Address"):
            listen(ServerSettings(port=port))


def test_a_host_that_is_none_is_one_line() -> None:
    """Names of its own that nobody resolves."""
    with pytest.raises(ListenError, match="check --host"):
        listen(ServerSettings(host="no such host", port=0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70_000},
        {"heartbeat_s": 0},
        {"heartbeat_s": math.nan},
        {"idle_timeout_s": math.inf},
        {"grace_s": math.inf},
        {"grace_s": -1},
        {"max_body_bytes": 0},
        {"api_key": " "},
        {"model_name": ""},
    ],
)
def test_settings_outside_their_range_are_refused(wrong: dict[str, Any]) -> None:
    """By name."""
    with pytest.raises(Exception, match=f"`{next(iter(wrong))}` must"):
        ServerSettings(**wrong)


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "https://a/b"])
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(InvalidParameter, match="`cors_origin` must be as https://example.org"):
        ServerSettings(cors_origins=(origin,))
    ServerSettings(cors_origins=("*", "https://example.org", "http://localhost:3000"))


@pytest.mark.parametrize("host", ["http://box", "box:8000"])
def test_a_host_that_no_header_can_name_is_refused(host: str) -> None:
    """Ports are not compared."""
    with pytest.raises(InvalidParameter, match="`allowed_host` must be a name without"):
        ServerSettings(allowed_hosts=(host,))
    ServerSettings(allowed_hosts=("box", "fe80::1"))


def test_an_address_of_another_machine_is_told_of_by_its_option() -> None:
    """192.0.2.0/24 is for documentation: no machine has it."""
    with pytest.raises(ListenError, match="on 192.0.2.1: .*; check --host"):
        listen(ServerSettings(host="192.0.2.1", port=0))


def _is_busy(server: Server) -> bool:
    """Return whether the one stream has begun; nothing tells so but time and the log."""
    time.sleep(0.2)
    return server.process.poll() is None


def _tolerant_stream(server: Server) -> None:
    body = long_stream(server)
    try:
        server.client.post("/v1/completions", json=body)
    except httpx.HTTPError:
        return
