"""Known faults of other servers in streams of events (cases A-SSE-*)."""

from __future__ import annotations

import contextlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from serving import Server, events, joined, serving


@pytest.mark.parametrize("fields", [{}, {"n": 2, "temperature": 1}])
@pytest.mark.parametrize("has_usage", [False, True])
def test_the_shape_of_a_stream(plain: Server, fields: dict[str, Any], has_usage: bool) -> None:
    """A-SSE-01."""
    options = {"stream_options": {"include_usage": True}} if has_usage else {}
    chunks = plain.stream("Hi", max_tokens=5, **fields, **options)
    if has_usage:
        usage = chunks.pop()
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 5 * fields.get("n", 1)
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    for name in ("id", "created", "model", "object", "system_fingerprint"):
        assert len({chunk[name] for chunk in chunks}) == 1
    assert abs(chunks[0]["created"] - time.time()) < 60
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert [reason for reason in reasons if reason is not None] == ["length"] * fields.get("n", 1)
    assert reasons[-1] == "length"


def test_no_character_of_the_text_ends_a_line_of_the_stream(actor: Server) -> None:
    """httpx, like str.splitlines, ends a line at U+0085, U+2028 and U+2029 as well.

    Bytes of other characters are those of U+0085 to clients that are not told that they are UTF-8.
    """
    body = actor.body("x" * 140, stream=True, max_tokens=20)
    with actor.client.stream("POST", "/v1/completions", json=body) as response:
        assert response.charset_encoding == "utf-8"
        lines = [line for line in response.iter_lines() if line]
    assert [line for line in lines if not line.startswith("data: ")] == []
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert joined(chunks) == "a\u2028b\u2029c\x85d"


def test_the_openai_package_reads_the_stream(plain: Server) -> None:
    """A-SSE-01."""
    with openai.OpenAI(base_url=f"{plain.url}/v1", api_key="x") as client:
        chunks = list(
            client.completions.create(
                model="plain", prompt="Hi", max_tokens=5, temperature=0, stream=True
            )
        )
    assert "".join(chunk.choices[0].text for chunk in chunks) == plain.text("Hi", max_tokens=5)


def test_a_silent_stream_is_kept_alive_and_proxies_are_told_not_to_hold_it(
    babbling_bundle: Path,
) -> None:
    """A-SSE-02: the one slot is taken, so the second stream waits in silence."""
    with serving(babbling_bundle, options={"slots": 1}, heartbeat_s=0.05) as server:

        def asked(max_tokens: int) -> contextlib.AbstractContextManager[httpx.Response]:
            body = server.body(max_tokens=max_tokens, stream=True)
            return server.client.stream("POST", "/v1/completions", json=body)

        with asked(60_000) as first:
            held = first.iter_raw()  # which ends the response when it is dropped
            next(held)
            with asked(1) as second:
                lines = second.iter_lines()
                assert [next(lines) for _ in range(4)] == [": waiting", "", ": waiting", ""]
                first.close()
                assert [line for line in lines if line][-1] == "data: [DONE]"
    assert second.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert second.headers["cache-control"] == "no-cache"
    assert second.headers["x-accel-buffering"] == "no"


def test_what_can_be_checked_is_checked_before_a_stream_begins(plain: Server) -> None:
    """A-SSE-03."""
    plain.refused(plain.body("Hi", stream=True, temperature=9))
    plain.refused(plain.body("Hi", stream=True, max_tokens=10**6))


def test_a_later_failure_is_an_error_event_and_others_go_on(actor: Server) -> None:
    """A-SSE-03, logits of NaN after two tokens."""
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(actor.stream, "x", max_tokens=60)
        raw = actor.raw_stream("/v1/completions", actor.body("x" * 80, stream=True, max_tokens=20))
    *good, last = events(raw)
    assert [json.loads(chunk)["choices"][0]["text"] for chunk in good] == ["hello", " world"]
    assert json.loads(last)["error"]["type"] == "server_error"
    assert "DONE" not in last
    assert joined(other.result()).endswith("hello")
    with openai.OpenAI(base_url=f"{actor.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.completions.create(
            model="actor", prompt="x" * 80, max_tokens=20, temperature=0, stream=True
        )
        with pytest.raises(openai.APIError):
            list(stream)
    assert actor.refused(actor.body("x" * 80, max_tokens=20), status=500)
    assert actor.text("x", max_tokens=60).endswith("hello")
