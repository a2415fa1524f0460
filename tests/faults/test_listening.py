"""Where the server listens and who may reach it there: ports, TLS, Unix sockets, origins."""

from __future__ import annotations

import signal
import socket
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from ortolan_server.keys import add_key
from ortolan_server.listening import ListenError, listen, listening
from ortolan_server.settings import ServerSettings
from serving import Server, serving

FAILING = Path(__file__).with_name("serve_failing.py")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_others_reach_needs_keys(host: str, tmp_path: Path) -> None:
    """Or the word that none are wanted."""
    with pytest.raises(ListenError, match="ortolan keys add NAME.*--no-auth"):
        listen(ServerSettings(host=host, port=0))
    listen(ServerSettings(host=host, port=0, no_auth=True)).close()
    listen(ServerSettings(host=host, port=0, api_key="sk-x")).close()
    add_key(tmp_path / "keys.json", "a")
    listen(ServerSettings(host=host, port=0, keys_file=str(tmp_path / "keys.json"))).close()


def test_https_is_served_with_a_certificate(
    babbling_bundle: Path, certificate: tuple[Path, Path]
) -> None:
    """Streams as well; plain HTTP gets nothing out of it."""
    made, key = map(str, certificate)
    with serving(babbling_bundle, tls_certificate=made, tls_key=key) as server:
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cafile=made)
        with httpx.Client(base_url=server.url, verify=context) as client:
            assert client.get("/health").status_code == 200
            body = {"model": "babbling", "prompt": "x", "max_tokens": 3, "stream": True}
            assert client.post("/v1/completions", json=body).text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{server.port}/health")
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tls_certificate": "/nothing", "tls_key": "/nothing"}, "check --tls-certificate"),
        ({"tls_certificate": "a.pem"}, "`tls_key` must be given"),
        ({"tls_key": "a.pem"}, "`tls_certificate` must be given"),
    ],
)
def test_files_of_tls_that_cannot_be_used_are_one_line(wrong: dict[str, str], message: str) -> None:
    """Before a model is loaded."""
    with pytest.raises(Exception, match=message):
        listen(ServerSettings(port=0, **wrong))


def test_a_unix_socket_is_served_and_removed(babbling_bundle: Path, tmp_path: Path) -> None:
    """Its owner and group may use it; one that a crash left behind is replaced."""
    path = tmp_path / "ortolan.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with serving(babbling_bundle, unix_socket=str(path)) as server:
        assert server.url == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(ListenError, match="Address already in use"):
            listen(ServerSettings(unix_socket=str(path)))
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost"
        ) as client:
            body = {"model": "babbling", "prompt": "x", "max_tokens": 3}
            assert client.post("/v1/completions", json=body).status_code == 200
        assert server.stop(signal.SIGTERM) == 0
        assert not path.exists()


def test_a_unix_socket_goes_with_its_own_server_alone(tmp_path: Path) -> None:
    """A second server, which is refused, leaves the first one's."""
    settings = ServerSettings(unix_socket=str(tmp_path / "ortolan.sock"))
    with listening(settings):
        with pytest.raises(ListenError), listening(settings):
            pass
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_a_unix_socket_goes_with_a_server_that_does_not_start(tmp_path: Path) -> None:
    """As where its bundle cannot be loaded."""
    settings = ServerSettings(unix_socket=str(tmp_path / "ortolan.sock"))
    with pytest.raises(ZeroDivisionError), listening(settings):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    """It may be somebody's."""
    path = tmp_path / "text"
    path.write_text("mine")
    with pytest.raises(ListenError, match="check --unix-socket"):
        listen(ServerSettings(unix_socket=str(path)))
    assert path.read_text() == "mine"


def test_pages_of_listed_origins_alone_may_ask(babbling_bundle: Path) -> None:
    """A preflight needs no key, since a browser sends none with it."""
    asking = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    with serving(babbling_bundle, api_key="sk-x", cors_origins=["https://a.example"]) as server:

        def preflight(origin: str) -> httpx.Response:
            headers = {**asking, "origin": origin}
            return server.client.options("/v1/completions", headers=headers)

        good = preflight("https://a.example")
        assert good.status_code == 200
        assert good.headers["access-control-allow-origin"] == "https://a.example"
        assert "authorization" in good.headers["access-control-allow-headers"]
        assert "access-control-allow-origin" not in preflight("https://b.example").headers
        refused = server.client.get("/version", headers={"origin": "https://a.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://a.example"
        assert "x-ratelimit-limit-requests" in refused.headers["access-control-expose-headers"]


def test_without_origins_a_preflight_is_refused(server: Server) -> None:
    """The browser then asks nothing more."""
    headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
    answer = server.client.options("/v1/completions", headers=headers)
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_failure_of_our_own_can_be_read_by_pages_that_may_ask(babbling_bundle: Path) -> None:
    """A-HTTP-07: a 500 carries the origin too; it tells an id, and neither it nor the log more."""
    command = [sys.executable, str(FAILING), str(babbling_bundle), "submit"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        body = {"model": "babbling", "prompt": "x"}
        answers = [
            httpx.post(f"{url}/v1/completions", json=body, headers={"origin": origin})
            for origin in ("https://a.example", "https://b.example")
        ]
        process.terminate()
        log = process.stderr.read()
        assert process.wait(10) == 0
    assert [answer.status_code for answer in answers] == [500, 500]
    allowed, stranger = (answer.headers for answer in answers)
    assert allowed["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-origin" not in stranger
    assert allowed["x-request-id"] in answers[0].json()["error"]["message"]
    assert f"{allowed['x-request-id']} failed: ZeroDivisionError" in log
    assert "secret" not in log + answers[0].text
