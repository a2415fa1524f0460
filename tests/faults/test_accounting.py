"""One usage record for each completion request, whatever its ending, with the engine's counts."""

from __future__ import annotations

import random
import time
from pathlib import Path

import httpx
import msgspec

from figures import figures, running
from ortolan_server.keys import KeyLimits, add_key
from ortolan_server.observation import UsageRecord
from serving import Server, serving, wait_until
from sockets import completion, connect


def records(path: Path) -> list[UsageRecord]:
    """Return all records of a file."""
    return [msgspec.json.decode(line, type=UsageRecord) for line in path.read_bytes().splitlines()]


def test_each_ending_has_its_record(babbling_bundle: Path, tmp_path: Path) -> None:
    """Whole, streamed, refused for what it says or beyond a limit, abandoned, ended at the end."""
    log, keys = tmp_path / "usage.jsonl", tmp_path / "keys.json"
    key, secret = add_key(keys, "a")
    slow, slow_secret = add_key(keys, "b", limits=KeyLimits(requests_per_minute=1))
    bearer = {"authorization": f"Bearer {secret}"}
    with serving(
        babbling_bundle, usage_log=str(log), keys_file=str(keys), headers=bearer, grace_s=0.2
    ) as server:
        server.complete("hello", max_tokens=5, n=2)
        server.stream("hello", max_tokens=4)
        server.refused(server.body("x", n=0))
        _abandon(server)
        wait_until(lambda: len(records(log)) == 4)
        for status in (200, 429):
            body = server.body("hello", max_tokens=1)
            answer = server.post("/v1/completions", body, authorization=f"Bearer {slow_secret}")
            assert answer.status_code == status
        raw = completion(max_tokens=60_000).replace(b"host:", _line(bearer) + b"host:")
        with connect(server) as connection:
            connection.sendall(raw)
            wait_until(lambda: running(server) == 1)
            assert server.stop() == 0
    found = records(log)
    assert [one.ending for one in found] == [
        "complete", "complete", "refused", "client_left", "complete", "refused", "failed",
    ]  # fmt: skip
    assert [one.status for one in found] == [200, 200, 400, 200, 200, 429, 503]
    assert [one.delivered_tokens for one in found[:3]] == [10, 4, 0]
    assert [one.generated_tokens for one in found[:3]] == [10, 4, 0]
    assert found[3].generated_tokens >= found[3].delivered_tokens > 0
    assert found[3].finish_reasons == {"cancelled": 1}
    assert [one.prompt_tokens for one in found[:2]] == [1, 1]
    assert [one.key_id for one in found] == [key.id] * 4 + [slow.id] * 2 + [key.id]
    assert len({one.request_id for one in found}) == 7


def test_sums_are_the_engines_under_random_cancels(babbling_bundle: Path, tmp_path: Path) -> None:
    """Of prompt, cached, generated and delivered tokens, with clients that leave at any time."""
    log, rng = tmp_path / "usage.jsonl", random.Random(7)
    with serving(babbling_bundle, options={"slots": 2}, usage_log=str(log)) as server:
        for _ in range(60):
            fields: dict[str, object] = {"stream": rng.random() < 0.5, "n": rng.choice([1, 2, 3])}
            with connect(server) as connection:
                prompt = "".join(rng.choices("abc", k=rng.choice([3, 40, 600])))
                fields |= {"prompt": prompt, "max_tokens": rng.choice([1, 20, 60_000])}
                connection.sendall(completion(**fields))
                time.sleep(rng.choice([0, 0.002, 0.02, 0.05]))
        wait_until(lambda: running(server) == 0)
        wait_until(lambda: len(records(log)) == 60)
        total = figures(server)
        assert server.stop() == 0
    found = records(log)
    for name, counted in (
        ("ortolan_prompt_tokens_total", sum(one.prefilled_tokens for one in found)),
        ("ortolan_cached_prompt_tokens_total", sum(one.reused_tokens for one in found)),
        ("ortolan_generated_tokens_total", sum(one.generated_tokens for one in found)),
        ("ortolan_delivered_tokens_total", sum(one.delivered_tokens for one in found)),
    ):
        assert total[name] == counted > 0, name
    assert len(records(log)) == 60
    assert all(one.delivered_tokens <= one.generated_tokens for one in records(log))


def _abandon(server: Server) -> None:
    body = server.body("x", max_tokens=60_000, stream=True)
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=server.client.headers) as stream:
        chunks = stream.iter_raw()
        for _ in range(3):
            next(chunks)


def _line(headers: dict[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
