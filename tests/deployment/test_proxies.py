"""nginx and Caddy with the configurations of deploy/, in front of real servers.

A step of the model takes a few milliseconds, and its streams last for seconds.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from processes import free_port, running_program

from figures import running
from ortolan_server.settings import ServerSettings
from serving import Server, serving, wait_until

pytestmark = pytest.mark.clients

DEPLOY = Path(__file__).parents[2] / "deploy"
NGINX = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
CADDY = (DEPLOY / "Caddyfile").read_text(encoding="utf-8")
KEY = "sk-deployment"
# A step takes a few ms; the rest is for a busy machine.
FREE_WITHIN_S = 1.0
LONG = {"model": "babbling", "prompt": "x", "temperature": 0, "max_tokens": 60_000, "stream": True}

Proxy = Callable[..., contextlib.AbstractContextManager[httpx.Client]]


@pytest.fixture(scope="session")
def server(babbling_bundle: Path) -> Iterator[Server]:
    """Give a server behind a key, with a queue of one."""
    headers = {"authorization": f"Bearer {KEY}"}
    options = {"slots": 2, "queue_limit": 1}
    settings = {"headers": headers, "api_key": KEY, "heartbeat_s": 0.2}
    with serving(babbling_bundle, options=options, **settings) as running:
        yield running


def nginx(tmp_path: Path, certificate: tuple[Path, Path], *ports: int) -> Proxy:
    """Return a context with a client of nginx in front of servers on ``ports``."""
    port = free_port()
    site = NGINX.replace("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;")
    site = site.replace("    listen [::]:443 ssl;\n", "")
    site = site.replace("/etc/ssl/ortolan/fullchain.pem", str(certificate[0]))
    site = site.replace("/etc/ssl/ortolan/key.pem", str(certificate[1]))
    site = site.replace("/var/log/nginx/ortolan.log", str(tmp_path / "access.log"))
    one = "    server 127.0.0.1:8000 max_fails=1 fail_timeout=1s;\n"
    assert one in site
    site = site.replace(one, "".join(one.replace("8000", str(port)) for port in ports))
    paths = "".join(
        f"{name}_temp_path {tmp_path / name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(
        f"daemon off;\nmaster_process off;\npid {tmp_path / 'pid'};\nerror_log stderr warn;\n"
        f"events {{}}\nhttp {{\n{paths}{site}}}\n"
    )
    command = ["nginx", "-e", "stderr", "-p", str(tmp_path), "-c", str(configuration)]
    return _started(command, tmp_path, f"https://localhost:{port}", certificate[0])


def caddy(tmp_path: Path, certificate: tuple[Path, Path], *ports: int) -> Proxy:
    """Return a context with a client of Caddy in front of servers on ``ports``."""
    port = free_port()
    site = CADDY.replace(
        "reverse_proxy 127.0.0.1:8000",
        "reverse_proxy " + " ".join(f"127.0.0.1:{port}" for port in ports),
    )
    tls = f"\ttls {certificate[0]} {certificate[1]}\n"
    site = site.replace("ortolan.example.org {\n", f"https://localhost:{port} {{\n{tls}")
    configuration = tmp_path / "Caddyfile"
    configuration.write_text(f"{{\n\tadmin off\n\tauto_https off\n}}\n{site}")
    command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(configuration)]
    return _started(command, tmp_path, f"https://localhost:{port}", certificate[0])


@contextlib.contextmanager
def _started(
    command: list[str], folder: Path, url: str, certificate: Path
) -> Iterator[httpx.Client]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    log = folder / "proxy.log"
    headers = {"authorization": f"Bearer {KEY}"}
    trust = ssl.create_default_context(cafile=str(certificate))
    with (
        running_program(command, log),
        httpx.Client(base_url=url, verify=trust, headers=headers, timeout=60) as client,
    ):
        wait_until(lambda: _answers(client), timeout_s=20)
        yield client


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


PROXIES = {"nginx": nginx, "caddy": caddy}


@pytest.fixture(params=PROXIES)
def client(
    request: pytest.FixtureRequest,
    server: Server,
    certificate: tuple[Path, Path],
    tmp_path: Path,
) -> Iterator[httpx.Client]:
    """Give a client of a proxy in front of the server."""
    with PROXIES[request.param](tmp_path, certificate, server.port) as client:
        yield client
        wait_until(lambda: running(server) == 0)


@contextlib.contextmanager
def full(client: httpx.Client, server: Server) -> Iterator[httpx.Response]:
    """Fill two slots and the queue of one; give the response that waits."""
    with contextlib.ExitStack() as streams:
        for number in (1, 2, 3):
            response = streams.enter_context(client.stream("POST", "/v1/completions", json=LONG))
            assert response.status_code == 200, response.read()
            wait_until(lambda number=number: running(server) == number)
        yield response


def test_a_single_short_event_is_not_held_back(client: httpx.Client, server: Server) -> None:
    """A stream that waits for a slot says so in 11 bytes, which no buffer would let out."""
    with full(client, server) as waiting:
        assert next(waiting.iter_lines()) == ": waiting"


def test_no_stream_is_broken_off(client: httpx.Client) -> None:
    """Caddy broke off 37 of 600 short ones: of 200, none would be with odds of 1 to 300,000."""
    body = LONG | {"max_tokens": 20}
    for _ in range(200):
        with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.read().endswith(b"data: [DONE]\n\n")


def test_a_client_that_leaves_frees_its_row(client: httpx.Client, server: Server) -> None:
    """Through two more hands than without a proxy."""
    with client.stream("POST", "/v1/completions", json=LONG) as response:
        lines = response.iter_lines()  # which ends the response when it is dropped
        assert next(lines).startswith("data: ")
        wait_until(lambda: running(server) == 1)
    client.close()
    wait_until(lambda: running(server) == 0, timeout_s=FREE_WITHIN_S)


def test_a_client_that_leaves_before_its_answer_frees_its_row(
    client: httpx.Client, server: Server
) -> None:
    """A request that does not stream: nothing was sent when it left."""
    body = LONG | {"stream": False}
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=body, timeout=0.5)
    wait_until(lambda: running(server) == 0, timeout_s=FREE_WITHIN_S)


def test_ids_and_refusals_pass(client: httpx.Client, server: Server) -> None:
    """Nothing of the proxy's own is in their place."""
    answer = client.get("/v1/models", headers={"x-request-id": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    too_large = client.post("/v1/completions", content=b"x" * ((1 << 20) + 1))
    assert too_large.status_code == 413
    assert "1048576" in too_large.json()["error"]["message"]
    assert client.get("/v1/models", headers={"authorization": "no"}).status_code == 401
    with full(client, server):
        busy = client.post("/v1/completions", json=LONG)
        assert busy.status_code == 429
        assert busy.json()["error"]["code"] == "overloaded"
        assert int(busy.headers["retry-after"]) > 0


def test_figures_are_for_this_machine_alone(client: httpx.Client) -> None:
    """Another loopback address stands for another machine."""
    assert client.get("/metrics").status_code == 200
    elsewhere = httpx.HTTPTransport(local_address="127.0.0.2", verify=False)
    headers = client.headers
    with httpx.Client(transport=elsewhere, base_url=client.base_url, headers=headers) as other:
        assert other.get("/v1/models").status_code == 200
        for path in ("/metrics", "/metrics/", "/admin/models"):
            assert other.get(path).status_code == 403, path


def test_a_server_that_ends_passes_its_clients_to_the_other(
    babbling_bundle: Path, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """With nginx no request is lost: what runs is finished, what comes goes to the other."""
    headers = {"authorization": f"Bearer {KEY}"}
    body = LONG | {"max_tokens": 20, "stream": False}
    with (
        serving(babbling_bundle, headers=headers, api_key=KEY) as first,
        serving(babbling_bundle, headers=headers, api_key=KEY) as second,
        nginx(tmp_path, certificate, first.port, second.port) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        is_over = threading.Event()

        def ask() -> list[int]:
            statuses = []
            while not is_over.is_set():
                statuses.append(client.post("/v1/completions", json=body).status_code)
            return statuses

        asking = [pool.submit(ask) for _ in range(4)]
        try:
            time.sleep(0.5)
            assert first.stop() == 0
            time.sleep(0.5)
        finally:
            is_over.set()
        statuses = [status for future in asking for status in future.result()]
        assert len(statuses) > 20
        assert set(statuses) == {200}
        assert second.stop() == 0
        gone = client.post("/v1/completions", json=body)
        assert gone.status_code == 503
        assert gone.json()["error"]["code"] == "unavailable"
        assert int(gone.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("text", "line"),
    [(NGINX, r"\bkeepalive_timeout (\d+)s;"), (CADDY, r"\bkeepalive (\d+)s\n")],
    ids=PROXIES,
)
def test_idle_connections_are_given_up_before_the_server_closes_them(text: str, line: str) -> None:
    """Else a request may meet the closing, and POST is not sent twice."""
    seconds = re.search(line, text)
    assert seconds is not None
    assert int(seconds[1]) < ServerSettings().idle_timeout_s


@pytest.mark.parametrize(("who", "seconds"), [("AWS's balancers", 60), ("Go's clients", 90)])
def test_idle_connections_outlast_what_clients_keep_by_default(who: str, seconds: int) -> None:
    """Whoever sets nothing must not meet the closing either."""
    assert ServerSettings().idle_timeout_s > seconds, who


def test_nginx_takes_bodies_that_the_server_refuses() -> None:
    """The refusal is then the server's own."""
    size = re.search(r"client_max_body_size (\d+)m;", NGINX)
    assert size is not None
    assert int(size[1]) << 20 > ServerSettings().max_body_bytes
