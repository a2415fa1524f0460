"""Keys on a real server: who gets in, what each may use, and changes that need no restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ortolan_server.keys import KeyLimits, add_key, revoke_key
from serving import Server, serving, wait_until

OPEN = ("/health", "/ready")
SHUT = ("/metrics", "/v1/models", "/version", "/openapi.json", "/tokenizer_info", "/nothing")
PAGE = ("/", "/page/page.js", "/page/layout.css")


class Locked:
    """A server with a file of keys, and a key that is good."""

    def __init__(self, server: Server, file: Path, secret: str) -> None:
        self.server = server
        self.file = file
        self.secret = secret

    def add(self, **fields: object) -> tuple[str, str]:
        """Add a key, wait until the server knows it, and return its id and its secret."""
        key, secret = add_key(self.file, "new", **fields)  # type: ignore[arg-type]
        wait_until(lambda: self.get("/version", secret).status_code == 200)
        return key.id, secret

    def get(self, path: str, secret: str) -> httpx.Response:
        """GET ``path`` with a key."""
        return self.server.client.get(path, headers=_bearer(secret))

    def complete(
        self, secret: str, path: str = "/v1/completions", **fields: object
    ) -> httpx.Response:
        """Return the answer to a completion."""
        body = {"model": "babbling", "prompt": "x", "max_tokens": 1, **fields}
        return self.server.client.post(path, json=body, headers=_bearer(secret))


@pytest.fixture(scope="module")
def locked(babbling_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    """Give a server with keys."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    _, secret = add_key(file, "first")
    with serving(
        babbling_bundle, keys_file=str(file), headers=_bearer(secret), api_key="sk-simple"
    ) as server:
        yield Locked(server, file, secret)


def test_every_route_but_health_needs_a_key(locked: Locked) -> None:
    """Unknown paths, too: they tell nothing."""
    with httpx.Client(base_url=locked.server.url) as stranger:
        assert [stranger.get(path).status_code for path in OPEN] == [200, 200]
        assert {stranger.get(path).status_code for path in SHUT} == {401}
        assert stranger.post("/v1/completions", json={}).json()["error"]["code"] == (
            "invalid_api_key"
        )


def test_the_page_that_asks_for_a_key_needs_none(locked: Locked) -> None:
    """Its files alone: what is not one of them is shut."""
    with httpx.Client(base_url=locked.server.url) as stranger:
        assert [stranger.get(path).status_code for path in PAGE] == [200, 200, 200]
        assert stranger.get("/page/nothing.js").status_code == 401
        assert stranger.get("/page/page.js/").status_code == 401


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer x",
        "Basic {}",
        "Bearer {}x",
        "Bearer {} {}",
        "{}",
        "Bearer é",
    ],
)
def test_a_header_that_is_not_quite_right_is_refused(locked: Locked, header: str) -> None:
    """With one answer for all."""
    value = header.format(locked.secret, locked.secret).encode("latin-1")
    answer = httpx.get(f"{locked.server.url}/version", headers=[(b"authorization", value)])
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_the_key_of_the_environment_opens_as_well(locked: Locked) -> None:
    """Beside those of the file."""
    assert locked.get("/version", "sk-simple").status_code == 200


def test_a_key_that_is_added_and_revoked_needs_no_restart(locked: Locked) -> None:
    """Within about a second each."""
    id, secret = locked.add()
    revoke_key(locked.file, id)
    wait_until(lambda: locked.get("/version", secret).status_code == 401)


def test_a_key_expires(locked: Locked) -> None:
    """By the clock, without a change of the file."""
    _, secret = locked.add(expires=time.time() + 2.5)
    wait_until(lambda: locked.get("/version", secret).status_code == 401)


def test_a_broken_file_leaves_the_keys_as_they_were(locked: Locked) -> None:
    """Neither does one that is gone open the door."""
    whole = locked.file.read_bytes()
    locked.file.write_bytes(b"{")
    time.sleep(1.2)
    assert locked.get("/version", locked.secret).status_code == 200
    assert httpx.get(f"{locked.server.url}/version").status_code == 401
    locked.file.write_bytes(whole)


def test_a_key_of_kind_access_does_not_open_second(locked: Locked) -> None:
    """As its document says; all else is open to it."""
    _, secret = locked.add(kind="access")
    refused = locked.complete(secret, "/openai/completions")
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "wrong_key_type"
    assert locked.complete(secret).status_code == 200


def test_requests_of_a_minute_are_counted_down(locked: Locked) -> None:
    """The headers say what is left, also on the refusal."""
    _, secret = locked.add(limits=KeyLimits(requests_per_minute=3))
    answers = [locked.complete(secret) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    left = [answer.headers["x-ratelimit-remaining-requests"] for answer in answers]
    assert left == ["2", "1", "0", "0"]
    assert answers[3].headers["x-ratelimit-limit-requests"] == "3"
    assert 1 <= int(answers[3].headers["retry-after"]) <= 20
    assert answers[3].json()["error"]["code"] == "rate_limit_exceeded"
    assert locked.get("/v1/models", secret).status_code == 200


def test_tokens_of_a_minute_are_used_up(locked: Locked) -> None:
    """Those of the prompt and those that were generated."""
    _, secret = locked.add(limits=KeyLimits(tokens_per_minute=60))
    assert locked.complete(secret, max_tokens=99).status_code == 200
    wait_until(lambda: locked.complete(secret).status_code == 429)
    refused = locked.complete(secret)
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    assert 30 <= int(refused.headers["retry-after"]) <= 41


def test_completions_at_once_are_bounded(locked: Locked) -> None:
    """One that is over, by its client's leaving too, makes room."""
    _, secret = locked.add(limits=KeyLimits(concurrency=1))
    body = {"model": "babbling", "prompt": "x", "max_tokens": 60_000, "stream": True}
    url = f"{locked.server.url}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=_bearer(secret)) as stream:
        chunks = stream.iter_raw()  # held: a generator that is dropped closes the connection
        next(chunks)
        refused = locked.complete(secret)
        assert refused.status_code == 429
        assert "limit of 1 requests at once" in refused.json()["error"]["message"]
    wait_until(lambda: locked.complete(secret).status_code == 200)


def test_a_key_for_other_models_finds_none(locked: Locked) -> None:
    """As if the model were not there."""
    _, secret = locked.add(limits=KeyLimits(models=("other",)))
    refused = locked.complete(secret)
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"


def test_no_secret_gets_into_the_log(locked: Locked) -> None:
    """Right or wrong."""
    locked.get("/version", "sk-wrong-secret")
    log = "".join(locked.server.log)
    assert "sk-wrong" not in log
    assert locked.secret not in log


def test_a_key_that_is_made_later_shuts_a_server_without_keys(
    babbling_bundle: Path, tmp_path: Path
) -> None:
    """Until then it answers to its own names alone."""
    file = tmp_path / "keys.json"
    with serving(babbling_bundle, keys_file=str(file), allowed_hosts=["box.lan"]) as server:
        assert _get_as(server, "evil.example") == 403
        assert _get_as(server, "evil.example", "/health") == 200
        assert _get_as(server, "evil.example", "/") == 403
        for host in ("localhost", "127.0.0.1:1", "[::1]:8000", "LOCALHOST", "box.lan:80"):
            assert _get_as(server, host) == 200
        _, secret = add_key(file, "first")
        wait_until(lambda: server.client.get("/version").status_code == 401)
        answer = httpx.get(
            f"{server.url}/version", headers={**_bearer(secret), "host": "evil.example"}
        )
        assert answer.status_code == 200


def _get_as(server: Server, host: str, path: str = "/version") -> int:
    return server.client.get(path, headers={"host": host}).status_code


def _bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}
