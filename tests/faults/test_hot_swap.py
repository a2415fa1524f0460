"""Another bundle takes the model's place while requests run: none is lost, none is mixed up."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from figures import figures, running
from ortolan_server.keys import add_key
from scripted import write_babbling_bundle
from serving import Server, events, serving, wait_until
from sockets import completion, connect, read_answer


class Swappable:
    """A server, its keys of both kinds, and a second bundle."""

    def __init__(self, server: Server, admin: str, other: Path) -> None:
        self.server = server
        self.admin = {"authorization": f"Bearer {admin}"}
        self.other = other

    def replace(self, bundle: Path | str) -> httpx.Response:
        """Ask for ``bundle``, as an admin."""
        return self.server.client.post(
            "/admin/models", json={"bundle": str(bundle)}, headers=self.admin
        )


@pytest.fixture
def swappable(babbling_bundle: Path, tmp_path: Path) -> Iterator[Swappable]:
    """Give a server of `babbling`, and a bundle `other` with a shorter context."""
    other = write_babbling_bundle(tmp_path / "other", name="other", context_length=512)
    keys = tmp_path / "keys.json"
    _, secret = add_key(keys, "user")
    _, admin = add_key(keys, "admin", kind="admin")
    bearer = {"authorization": f"Bearer {secret}"}
    log = str(tmp_path / "usage.jsonl")
    with serving(babbling_bundle, keys_file=str(keys), headers=bearer, usage_log=log) as server:
        yield Swappable(server, admin, other)


def test_new_requests_move_over_and_old_streams_end(swappable: Swappable) -> None:
    """Each with the model that it began with; the old one is closed after its last."""
    server = swappable.server
    secret = server.client.headers["authorization"]
    raw = completion(stream=True, max_tokens=4000)
    with connect(server) as connection:
        connection.sendall(raw.replace(b"host:", f"authorization: {secret}\r\nhost:".encode()))
        wait_until(lambda: running(server) == 1)
        answer = swappable.replace(swappable.other)
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"id": "other", "object": "model", "replaced": "babbling"}
        assert server.model == "other"
        assert server.client.get("/v1/models").json()["data"][0]["max_model_len"] == 512
        assert server.complete("x", max_tokens=3)["model"] == "other"
        stream = read_answer(connection)
    assert stream is not None
    *chunks, done = events(stream.body)
    assert done == "[DONE]"
    assert {json.loads(chunk)["model"] for chunk in chunks} == {"babbling"}
    wait_until(lambda: any("closed the model" in line for line in server.log))
    assert figures(server, "other")["ortolan_generated_tokens_total"] == 3
    assert figures(server, "babbling")["ortolan_generated_tokens_total"] == 4000
    assert server.stop() == 0


def test_no_request_is_lost_while_models_change(
    swappable: Swappable, babbling_bundle: Path
) -> None:
    """Clients that take whatever model is served."""
    server = swappable.server
    is_over = False

    def ask() -> set[int]:
        found = set()
        while not is_over:
            body = {"prompt": "x", "max_tokens": 3}  # Together's dialect needs no model
            found.add(server.post("/completions", body).status_code)
        return found

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask) for _ in range(4)]
        for bundle in (swappable.other, babbling_bundle, swappable.other):
            assert swappable.replace(bundle).status_code == 200
            time.sleep(0.1)
        is_over = True
        assert set.union(*(client.result() for client in clients)) == {200}
    wait_until(lambda: sum("closed the model" in line for line in server.log) == 3)


def test_a_bundle_that_cannot_be_opened_changes_nothing(
    swappable: Swappable, tmp_path: Path
) -> None:
    """Neither one that is not there nor one that is damaged."""
    damaged = tmp_path / "damaged"
    shutil.copytree(swappable.other, damaged)
    data = damaged / "model.onnx"
    data.write_bytes(data.read_bytes()[:-1])
    for bundle in ("/nowhere", damaged, ""):
        answer = swappable.replace(bundle)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "bundle"
    assert swappable.server.model == "babbling"


def test_a_misspelt_field_changes_nothing(swappable: Swappable) -> None:
    """And the error says which was meant."""
    server = swappable.server
    body = {"bundle": str(swappable.other), "modle": "babbling"}
    answer = server.client.post("/admin/models", json=body, headers=swappable.admin)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unknown_field"
    assert "did you mean `model`?" in answer.json()["error"]["message"]
    assert server.model == "babbling"


def test_only_an_admin_changes_models(swappable: Swappable, server: Server) -> None:
    """Not another key, and nobody where there are no keys."""
    body = {"bundle": str(swappable.other)}
    refused = swappable.server.client.post("/admin/models", json=body)
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "wrong_key_type"
    assert server.post("/admin/models", body).status_code == 401
