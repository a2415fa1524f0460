"""Ortolan on a Ray cluster of two replicas, all on this machine, with a replica killed midway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import free_port

from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_runtime.errors import InvalidParameter
from serving import events, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Ray's own modules
]
pytest.importorskip("ray", reason="Ray is not installed; pip install 'ortolan[ray]'")

DEPLOY = Path(__file__).parents[2] / "deploy"
CLUSTER = Path(__file__).with_name("ray_cluster.py")
MARK = "ORTOLAN_TEST_CLUSTER"
KEY = "sk-ray"
_START_S = 120.0


class Cluster:
    """A running cluster: a client of it, and the processes of its replicas."""

    def __init__(self, client: httpx.Client, mark: str, usage_logs: Path) -> None:
        self.client = client
        self._mark = f"{MARK}={mark}\0".encode()
        self._usage_logs = usage_logs

    def body(self, prompt: Any = "x", **fields: Any) -> dict[str, Any]:
        """Return a request body, greedy."""
        return {"model": "babbling", "prompt": prompt, "temperature": 0, **fields}

    def post(self, body: Any, **options: Any) -> httpx.Response:
        """Ask for a completion."""
        return self.client.post("/v1/completions", json=body, **options)

    def stream(self, body: dict[str, Any]) -> list[str]:
        """Return the data of each event of a stream."""
        with self.client.stream("POST", "/v1/completions", json=body) as response:
            raw = response.read()
            assert response.status_code == 200, raw
            assert response.headers["content-type"].startswith("text/event-stream")
        return events(raw)

    def replicas(self) -> list[int]:
        """Return the process ids of the engines."""
        return [
            int(folder.name)
            for folder in Path("/proc").glob("[0-9]*")
            if _starts_with(folder / "cmdline", b"ray::ServeReplica:ortolan:EngineReplica")
            and self._mark in _read(folder / "environ")
        ]

    def records(self) -> Counter[str]:
        """Return how many completions each replica has accounted for."""
        logs = self._usage_logs.glob("usage-*.jsonl")
        return Counter({log.name: len(log.read_bytes().splitlines()) for log in logs})

    def running(self) -> float:
        """Return the most sequences that run at a replica; each answer is of any of them."""
        most = 0.0
        for _ in range(8):
            for line in self.client.get("/metrics").text.splitlines():
                if line.startswith("ortolan_running_sequences"):
                    most = max(most, float(line.split()[-1]))
        return most


@pytest.fixture(scope="module")
def cluster(babbling_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a cluster of two replicas with four slots each."""
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    arguments = {
        "bundle": str(babbling_bundle),
        "min_replicas": 2,
        "engine": {"slots": 4, "queue_limit": 8},
        "server": {"usage_log": str(folder / "usage.jsonl")},
    }
    environment = {**os.environ, MARK: folder.name, "ORTOLAN_API_KEY": KEY}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(CLUSTER), str(port), json.dumps(arguments)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    assert process.stdin is not None
    has_started = threading.Event()
    reading = threading.Thread(target=_wait_for_ready, args=(process.stdout, has_started))
    reading.start()
    try:
        assert has_started.wait(_START_S), (folder / "log").read_text()[-3000:]
        headers = {"authorization": f"Bearer {KEY}"}
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, headers=headers, timeout=_START_S) as client:
            yield Cluster(client, folder.name, folder)
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reading.join()
        process.stdout.close()


def test_a_cluster_says_what_an_engine_says(cluster: Cluster, babbling_bundle: Path) -> None:
    """In one piece and as a stream."""
    with Engine.open(babbling_bundle, EngineOptions(threads=1)) as engine:
        expected = engine.complete("x", max_tokens=20, temperature=0)
    body = cluster.body(max_tokens=20)
    answer = cluster.post(body, headers={"x-request-id": "mine"})
    assert answer.json()["choices"][0]["text"] == expected
    assert answer.headers["x-request-id"] == "mine"
    *chunks, done = cluster.stream(body | {"stream": True})
    assert done == "[DONE]"
    assert "".join(json.loads(c)["choices"][0]["text"] for c in chunks) == expected


def test_refusals_are_those_of_the_server(cluster: Cluster) -> None:
    """Of the replica, and of the door for what never gets there."""
    assert cluster.post(cluster.body(temperature=9)).json()["error"]["param"] == "temperature"
    assert cluster.post(cluster.body(), headers={"authorization": "no"}).status_code == 401
    too_large = cluster.client.post("/v1/completions", content=b"x" * (1 << 20) + b"x")
    assert too_large.status_code == 413
    assert too_large.json()["error"]["code"] == "request_too_large"
    assert cluster.client.get("/nowhere").status_code == 404
    assert cluster.client.get("/ready").json() == {"status": "ready"}


def test_prompts_that_begin_alike_go_to_one_replica(cluster: Cluster) -> None:
    """By chance all of 12 would in 1 of 2,048 runs."""
    before = cluster.records()
    for number in range(12):
        cluster.post(cluster.body("the same beginning, and then " + "ab"[number % 2], max_tokens=1))
    wait_until(lambda: (cluster.records() - before).total() == 12)
    assert list((cluster.records() - before).values()) == [12]


def test_other_prompts_go_to_the_other_replica(cluster: Cluster) -> None:
    """The first of a kind goes to whoever has seen least."""
    before = cluster.records()
    for letter in "abcdefgh":
        cluster.post(cluster.body(letter * 200, max_tokens=1))
    wait_until(lambda: (cluster.records() - before).total() == 8)
    assert len(cluster.records() - before) == 2


def test_a_client_that_leaves_frees_its_row(cluster: Cluster) -> None:
    """Through Ray's proxy, the door and the replica; with a stream and without one."""
    for is_stream in (True, False):
        body = cluster.body(max_tokens=60_000, stream=is_stream)
        with pytest.raises(httpx.ReadTimeout):
            leave(cluster, body)
        wait_until(lambda: cluster.running() == 0, timeout_s=5)


def test_a_full_cluster_refuses(cluster: Cluster) -> None:
    """Beyond what the replicas and Ray's queue hold, at once."""
    body = cluster.body(max_tokens=60_000, stream=True)
    with ThreadPoolExecutor(40) as pool:
        statuses = Counter(pool.map(lambda n: _status(cluster, body), range(40)))
    assert statuses[429] > 0
    assert statuses[200] >= 8
    assert set(statuses) == {200, 429}
    wait_until(lambda: cluster.running() == 0, timeout_s=20)


def test_a_replica_that_is_killed_takes_its_streams_with_it_and_no_others(
    cluster: Cluster,
) -> None:
    """They end with an error; new ones go on at once; Ray starts another replica."""
    with ThreadPoolExecutor(6) as pool:
        bodies = [cluster.body(letter * 300, max_tokens=12_000, stream=True) for letter in "uvwxyz"]
        streams = []
        for body in bodies:
            streams.append(pool.submit(cluster.stream, body))
            time.sleep(0.2)  # so that the router knows where the others are
        killed, _ = cluster.replicas()
        os.kill(killed, signal.SIGKILL)
        at, statuses = time.monotonic(), []
        while time.monotonic() - at < 3:
            statuses.append(cluster.post(cluster.body(max_tokens=1)).status_code)
        lasts = [stream.result()[-1] for stream in streams]
    failed = [json.loads(last)["error"] for last in lasts if last != "[DONE]"]
    assert 0 < len(failed) < len(lasts), lasts
    assert {error["code"] for error in failed} == {"unavailable"}
    assert statuses[-1] == 200
    assert Counter(statuses)[200] > 0.8 * len(statuses), statuses
    wait_until(lambda: len(cluster.replicas()) == 2, timeout_s=60)
    print(f"{len(failed)} of {len(lasts)} streams failed; {Counter(statuses)} within 3 s")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "bundle"),
        ({"bundle": "b", "replicas": 2}, "replicas"),
        ({"bundle": "b", "cpus": 0}, "`cpus` must be >= 1"),
        ({"bundle": "b", "min_replicas": 3, "max_replicas": 2}, "`max_replicas` must be"),
        ({"bundle": "b", "engine": {"slots": "many"}}, "slots"),
        ({"bundle": "b", "engine": {"slot": 4}}, "slot"),
        ({"bundle": "b", "server": {"keys": "keys.json"}}, "keys"),
        ({"bundle": "b", "server": {"port": 80}}, "`server.port` must be left out"),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    """Misspelt ones, and those of our own way to listen."""
    from ortolan_server.ray import app

    with pytest.raises(InvalidParameter, match=message):
        app(arguments)


def test_the_file_for_serve_deploy_is_one() -> None:
    """As Ray reads it, and as the application reads its part."""
    import yaml
    from ray.serve.schema import ServeDeploySchema

    from ortolan_server.ray import app

    document = yaml.safe_load((DEPLOY / "ray.yaml").read_text(encoding="utf-8"))
    (application,) = ServeDeploySchema.model_validate(document).applications
    assert application.import_path == "ortolan_server.ray:app"
    assert app(application.args) is not None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"model": "m", "prompt": "Once"}', '"Once"'),
        (b'{"prompt": [1, 2, 3]}', "[1, 2, 3]"),
        (b'{"messages": [{"content": "a"}]}', '[{"content": "a"}]'),
        (b"no json", ""),
        (b"", ""),
    ],
)
def test_what_the_router_compares_is_the_prompt_as_it_is_written(body: bytes, text: str) -> None:
    from ortolan_server.ray import compared_text

    assert compared_text(body) == text


def leave(cluster: Cluster, body: dict[str, Any]) -> None:
    """Leave after the first line, or after a second without one. Raises httpx.ReadTimeout."""
    with cluster.client.stream("POST", "/v1/completions", json=body, timeout=1) as response:
        next(response.iter_lines())
    raise httpx.ReadTimeout("left after the first line")


def _status(cluster: Cluster, body: dict[str, Any]) -> int:
    """Return the status of a stream that is left after its first line, and held for a second."""
    with cluster.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        time.sleep(1)
        return response.status_code


def _wait_for_ready(lines: Iterable[bytes], has_started: threading.Event) -> None:
    """Read to the end: Ray writes to stdout what its actors write."""
    for line in lines:
        if line == b"ready\n":
            has_started.set()


def _starts_with(path: Path, prefix: bytes) -> bool:
    return _read(path).startswith(prefix)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it ended meanwhile, or is another's
