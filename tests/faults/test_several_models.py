"""Several models in one server: each request gets the one that it names, and only that."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgspec
import pytest

from figures import figures, running
from ortolan_server.keys import KeyLimits, add_key
from ortolan_server.observation import UsageRecord
from scripted import by_token, byte_level_tokenizer, readable, write_bundle
from serving import Server, serving, wait_until
from sockets import completion, connect

FAILING = Path(__file__).with_name("serve_failing.py")


def write_speaker(folder: Path, name: str, word: str, *, context_length: int = 256) -> Path:
    """Write a bundle that says ``word`` again and again."""
    tokenizer = byte_level_tokenizer(word)
    vocab = tokenizer.get_vocab_size()
    said = tokenizer.token_to_id(tokenizer.encode(word).tokens[0])
    table = readable(by_token(vocab, dict.fromkeys(range(vocab), said)), tokenizer)
    return write_bundle(
        folder, tokenizer, token_table=table, context_length=context_length, name=name
    )


class Two:
    """A server of `babbling` and `owl`, keys of three kinds, and a bundle to put in a place."""

    def __init__(self, server: Server, folder: Path, secrets: dict[str, str]) -> None:
        self.server = server
        self.secrets = secrets
        self.hen = folder / "hen"
        self.log = folder / "usage.jsonl"

    def bearer(self, who: str) -> dict[str, str]:
        """Return the header of one key."""
        return {"authorization": f"Bearer {self.secrets[who]}"}

    def ask(self, who: str, path: str = "/v1/completions", **fields: object) -> httpx.Response:
        """Return the answer to a completion."""
        body = {"prompt": "x", "max_tokens": 2, "temperature": 0, **fields}
        return self.server.client.post(path, json=body, headers=self.bearer(who))

    def replace(self, **fields: object) -> httpx.Response:
        """Ask for another bundle, as an admin."""
        return self.server.client.post("/admin/models", json=fields, headers=self.bearer("admin"))

    def names(self, who: str) -> list[str]:
        """Return the models that a key is shown."""
        answer = self.server.client.get("/v1/models", headers=self.bearer(who)).json()
        return [card["id"] for card in answer["data"]]

    def records(self) -> list[UsageRecord]:
        """Return the usage log."""
        lines = self.log.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=UsageRecord) for line in lines]


@pytest.fixture(scope="module")
def two(babbling_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Give the server; the tests of this module run in their order."""
    folder = tmp_path_factory.mktemp("two")
    owl = write_speaker(folder / "owl", "owl", "hoo")
    write_speaker(folder / "hen", "hen", "cluck", context_length=128)
    keys = folder / "keys.json"
    secrets = {
        "all": add_key(keys, "all")[1],
        "owl": add_key(keys, "owl", limits=KeyLimits(models=("owl", "hen")))[1],
        "none": add_key(keys, "none", limits=KeyLimits(models=("cat",)))[1],
        "admin": add_key(keys, "admin", kind="admin")[1],
    }
    headers = {"authorization": f"Bearer {secrets['all']}"}
    with serving(
        babbling_bundle,
        owl,
        options={"slots": 2},
        keys_file=str(keys),
        headers=headers,
        usage_log=str(folder / "usage.jsonl"),
    ) as server:
        yield Two(server, folder, secrets)


def test_a_request_gets_the_model_that_it_names(two: Two) -> None:
    """In every dialect, streaming or not; its own facts count, too."""
    answer = two.ask("all", model="owl").json()
    assert (answer["model"], answer["choices"][0]["text"]) == ("owl", "hoohoo")
    assert two.ask("all", model="babbling").json()["model"] == "babbling"
    for path in ("/tokensmind/v1/completions", "/openai/completions", "/completions"):
        assert two.ask("all", path, model="owl").json()["choices"][0]["text"] == "hoohoo"
    chunks = two.server.stream("x", model="owl", max_tokens=2)
    assert {chunk["model"] for chunk in chunks} == {"owl"}
    too_long = two.ask("all", model="owl", max_tokens=300)
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    assert two.ask("all", model="babbling", max_tokens=300).status_code == 200


def test_without_a_name_it_is_the_first_that_the_key_may_use(two: Two) -> None:
    """In the dialect in which the name may be left out."""
    assert two.ask("all", "/completions").json()["model"] == "babbling"
    assert two.ask("owl", "/completions").json()["model"] == "owl"
    assert two.ask("none", "/completions").status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/completions", 404),
        ("/tokensmind/v1/completions", 404),
        ("/openai/completions", 400),
        ("/completions", 404),
    ],
)
def test_an_unknown_model_is_the_dialects_own_error(two: Two, path: str, status: int) -> None:
    """It names those that are served, to this key."""
    refused = two.ask("all", path, model="cat")
    assert refused.status_code == status
    assert refused.json()["error"]["code"] == "model_not_found"
    assert "'babbling', 'owl'" in refused.json()["error"]["message"]
    hidden = two.ask("owl", path, model="babbling")
    assert hidden.status_code == status
    assert "a served model ('owl'), got 'babbling'" in hidden.json()["error"]["message"]


def test_the_list_shows_what_the_key_may_use(two: Two) -> None:
    """And nothing else is found by its name."""
    assert two.names("all") == ["babbling", "owl"]
    assert two.names("owl") == ["owl"]
    assert two.names("none") == []
    get = two.server.client.get
    assert get("/v1/models/owl").json()["max_model_len"] == 256
    assert get("/v1/models/babbling", headers=two.bearer("owl")).status_code == 404


def test_the_tokenizer_is_the_models_own(two: Two) -> None:
    """`hoo` is one token for the owl alone."""
    client = two.server.client

    def count(**fields: str) -> int:
        answer = client.post("/tokenize", json={"prompt": "hoo", **fields})
        return int(answer.json()["count"])

    assert (count(model="owl"), count(model="babbling"), count()) == (1, 3, 3)
    assert client.post("/tokenize", json={"prompt": "x", "model": "cat"}).status_code == 404
    info = client.get("/tokenizer_info?model=owl").json()
    assert info["model_max_length"] == 256
    assert client.get("/tokenizer_info").json()["model_max_length"] == 65536
    assert client.get("/tokenizer_info?model=cat").status_code == 404


def test_documents_name_every_model(two: Two) -> None:
    """And what an admin may do."""
    document = two.server.client.get("/openapi.json").json()
    body = document["paths"]["/v1/completions"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    assert schema["properties"]["model"]["enum"] == ["babbling", "owl"]
    assert "409" in document["paths"]["/admin/models"]["post"]["responses"]


def test_figures_and_records_are_by_model(two: Two) -> None:
    """A request that named none of them has none."""
    before = [figures(two.server, name) for name in ("babbling", "owl")]
    answers = [two.ask("all", model="owl", max_tokens=7), two.ask("all", model="cat")]
    ids = [answer.headers["x-request-id"] for answer in answers]
    after = [figures(two.server, name) for name in ("babbling", "owl")]
    name = "ortolan_generated_tokens_total"
    assert [b[name] - a[name] for a, b in zip(before, after, strict=True)] == [0, 7]
    assert [now["ortolan_slots"] for now in after] == [2, 2]
    wait_until(lambda: set(ids) <= {one.request_id for one in two.records()})
    found = [(one.model, one.status) for one in two.records() if one.request_id in ids]
    assert found == [("owl", 200), ("", 404)]


def test_both_models_run_at_once_and_do_not_feel_each_other(two: Two) -> None:
    """The same seed gives the same text, whoever else is busy."""
    fields = {"model": "babbling", "temperature": 1.0, "seed": 5, "max_tokens": 50}
    alone = two.ask("all", **fields).json()["choices"]
    with ThreadPoolExecutor(8) as pool:
        answers = [
            pool.submit(two.ask, "all", **(fields if i % 2 else {"model": "owl", "max_tokens": 99}))
            for i in range(8)
        ]
        found = [answer.result().json()["choices"] for answer in answers]
    assert all(choices == alone for choices in found[1::2])
    assert all(choices[0]["text"] == "hoo" * 99 for choices in found[::2])


def test_a_bundle_takes_the_place_that_is_named(two: Two) -> None:
    """The other goes on; without a name nobody knows which is meant."""
    unnamed = two.replace(bundle=str(two.hen))
    assert unnamed.json()["error"]["param"] == "model"
    assert two.replace(bundle=str(two.hen), model="cat").status_code == 404
    assert two.replace(bundle=str(two.hen), model=3).status_code == 400
    counted = figures(two.server, "owl")["ortolan_generated_tokens_total"]
    answer = two.replace(bundle=str(two.hen), model="owl")
    assert answer.json() == {"id": "hen", "object": "model", "replaced": "owl"}
    assert two.names("all") == ["babbling", "hen"]
    assert two.ask("all", model="hen").json()["choices"][0]["text"] == "cluckcluck"
    assert two.ask("owl", "/completions").json()["model"] == "hen"
    assert two.ask("all", model="owl").status_code == 404
    assert figures(two.server, "owl")["ortolan_generated_tokens_total"] == counted
    same = two.replace(bundle=str(two.hen), model="babbling")
    assert same.status_code == 400
    assert "served as hen already" in same.json()["error"]["message"]


def test_an_engine_that_dies_ends_the_requests_of_all(two: Two, babbling_bundle: Path) -> None:
    """Each with its error; the process ends with 70, to be started anew."""
    owl = write_speaker(two.hen.parent / "long", "owl", "hoo", context_length=1 << 16)
    command = [sys.executable, str(FAILING), f"{babbling_bundle}:{owl}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        body = {"prompt": "x", "max_tokens": 60_000, "temperature": 0, "stream": True}
        with httpx.stream(
            "POST", f"{url}/v1/completions", json={"model": "owl", **body}, timeout=30
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            httpx.post(f"{url}/v1/completions", json={"model": "babbling", **body}, timeout=30)
            *_, last = [line for line in lines if line]
        assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
        assert process.wait(5) == 70


def test_the_end_waits_for_every_model(two: Two) -> None:
    """`/ready` says no meanwhile; what runs is finished."""
    bearer = f"authorization: {two.bearer('all')['authorization']}\r\nhost:".encode()
    server = two.server
    with connect(server) as stream:
        raw = completion(model="babbling", stream=True, max_tokens=2000)
        stream.sendall(raw.replace(b"host:", bearer))
        wait_until(lambda: running(server) == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.client.get("/ready").status_code == 503)
        body = b""
        while part := stream.recv(65536):
            body += part
    assert b"data: [DONE]" in body
    assert server.process.wait(10) == 0
    assert json.loads(two.log.read_bytes().splitlines()[-1])["model"] == "babbling"
