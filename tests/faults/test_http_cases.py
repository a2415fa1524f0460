"""Hand-made requests over raw sockets: each has one answer, in JSON, and the server lives on."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from serving import Server
from sockets import completion, exchange, request

CHUNKED = "transfer-encoding: chunked"
JSON = "content-type: application/json"
FINE = b'{"model": "babbling", "prompt": "x", "max_tokens": 1}'
# What Java's HttpClient sends with every request to http://.
HTTP2_OFFER = (
    "connection: Upgrade, HTTP2-Settings",
    "http2-settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA",
    "upgrade: h2c",
)
AT_LIMIT = FINE + b" " * ((32 << 10) - len(FINE))


@dataclass(frozen=True)
class Case:
    """What is sent, and the status that answers it."""

    name: str
    raw: bytes
    status: int


def with_field(value: str, field: str = "max_tokens") -> bytes:
    """Return a completion request whose ``field`` is the JSON ``value``."""
    return request(
        body=b'{"model": "babbling", "prompt": "x", "%s": %s}' % (field.encode(), value.encode())
    )


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n", lines: tuple[str, ...] = ()) -> bytes:
    """Return a completion request whose body comes in chunks; ``lines`` are further headers."""
    parts = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return request("POST", "/v1/completions", None, CHUNKED, JSON, *lines) + parts + end


NO_HTTP = [
    Case("binary", b"\x00\x01\x02\r\n\r\n", 400),
    Case("TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 40, 400),
    Case("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    Case("version 9.9", b"GET /health HTTP/9.9\r\n\r\n", 400),
    Case("lower-case method", b"get /health HTTP/1.1\r\n\r\n", 400),
    Case("invented method", b"FETCH /health HTTP/1.1\r\n\r\n", 400),
    Case("no version", b"GET /health\r\n\r\n", 200),
    Case("no path", b"GET  HTTP/1.1\r\n\r\n", 400),
    Case("SMTP", b"EHLO example.org\r\n\r\n", 400),
    Case("header without colon", request("GET", "/health", None, "nonsense"), 400),
    Case("space before the colon", request("GET", "/health", None, "x-a : b"), 400),
    Case("empty header name", request("GET", "/health", None, ": b"), 400),
    Case("control character in a name", request("GET", "/health", None, "x\x01a: b"), 400),
    Case("NUL in a value", request("GET", "/health", None, "x-a: b\x00c"), 400),
    Case("bare CR in a value", request("GET", "/health", None, "x-a: b\rx-c: d"), 400),
    Case("folded header", request("GET", "/health", None, "x-a: b\r\n c"), 400),
]
LENGTHS = [
    Case("negative length", request("POST", "/v1/completions", None, "content-length: -1"), 400),
    Case("length with a sign", request("POST", "/v1/completions", None, "content-length: +5"), 400),
    Case("hexadecimal length", request("POST", "/health", None, "content-length: 0x5"), 400),
    Case("list of lengths", request("POST", "/health", None, "content-length: 5, 5"), 400),
    Case("huge length", request("POST", "/health", None, f"content-length: {1 << 65}"), 400),
    Case(
        "two lengths",
        request("POST", "/v1/completions", FINE, "content-length: 6"),
        400,
    ),
    Case(
        "two equal lengths",
        request("POST", "/v1/completions", FINE, f"content-length: {len(FINE)}"),
        400,
    ),
    Case("length and chunks", request("POST", "/v1/completions", FINE, CHUNKED), 400),
    Case("chunk size is no number", chunked(end=b"zz\r\n"), 400),
    Case("chunk size overflows", chunked(end=b"fffffffffffffffff\r\n"), 400),
    Case("chunk size is negative", chunked(end=b"-1\r\n"), 400),
    Case("chunk longer than said", chunked(end=b"1\r\nabc\r\n0\r\n\r\n"), 400),
    Case(
        "unknown coding", request("POST", "/v1/completions", None, "transfer-encoding: rot13"), 400
    ),
    Case(
        "chunked is not last",
        request("POST", "/v1/completions", None, "transfer-encoding: chunked, identity"),
        400,
    ),
    Case("chunks", chunked(FINE[:9], FINE[9:]), 200),
    Case("chunks of one byte", chunked(*(FINE[i : i + 1] for i in range(len(FINE)))), 200),
    Case("chunk extensions", chunked(end=b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(FINE), FINE)), 200),
    Case("trailers", chunked(FINE, end=b"0\r\nx-a: b\r\n\r\n"), 200),
    Case("no body", request("POST", "/v1/completions", b""), 400),
    Case("body at the limit", request(body=AT_LIMIT), 200),
    Case("body over the limit", request(body=AT_LIMIT + b" "), 413),
    Case("chunks over the limit", chunked(AT_LIMIT, b" "), 413),
    Case("endless chunks", chunked(*[b" " * 4096] * 20, end=b""), 413),
    Case(
        "announced over the limit",
        request("POST", "/v1/completions", None, "content-length: 999999999", JSON),
        413,
    ),
    Case("over the limit on second", request("POST", "/openai/completions", AT_LIMIT + b" "), 400),
    Case("header over the limit", request("GET", "/health", None, "x-a: " + "a" * 9000), 431),
    Case("many headers", request("GET", "/health", None, *["x-a: b"] * 1200), 431),
    Case("path over the limit", request("GET", "/" + "a" * 9000), 431),
    Case("cookie just fits", request("GET", "/health", None, "cookie: " + "a" * 7000), 200),
    Case("header never ends", b"GET /health HTTP/1.1\r\nhost: localhost\r\n", 408),
    Case("nothing comes", b"", 408),
    Case("request line never ends", b"POST /v1/comp", 408),
    Case("body never comes", request(body=FINE)[: -len(FINE)], 408),
    Case("body never ends", request(body=FINE)[:-1], 408),
    Case("last chunk never comes", chunked(FINE, end=b""), 408),
]
ROUTES = [
    Case("unknown path", request("GET", "/v2/completions"), 404),
    Case("base path", request("GET", "/v1"), 404),
    Case("doubled slash", request("GET", "//health"), 404),
    Case("dots", request("GET", "/v1/../health"), 404),
    Case("encoded slash", request("GET", "/v1%2fmodels%2e"), 404),
    Case("encoded NUL", request("GET", "/%00"), 404),
    Case("broken encoding", request("GET", "/%zz"), 404),
    Case("encoded bytes that are no UTF-8", request("GET", "/%ff%fe"), 404),
    Case("long path", request("GET", "/" + "a" * 4000), 404),
    Case("query", request("GET", "/health?a=%00&b[]=1"), 200),
    Case("absolute form", request("GET", "http://localhost/health"), 200),
    Case("HTTP/1.0", b"GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n", 200),
    Case("slash at the end", request("GET", "/health/"), 200),
    Case(
        "upgrade", request("GET", "/health", None, "upgrade: websocket", "connection: upgrade"), 200
    ),
    Case("offer of HTTP/2", request("GET", "/health", None, *HTTP2_OFFER), 200),
    Case(
        "offer of HTTP/2 and a body",
        request("POST", "/v1/completions", FINE, *HTTP2_OFFER),
        200,
    ),
    Case("offer of HTTP/2 and chunks", chunked(FINE[:9], FINE[9:], lines=HTTP2_OFFER), 200),
    Case(
        "offer of HTTP/2 and a body over the limit",
        request("POST", "/v1/completions", AT_LIMIT + b" ", *HTTP2_OFFER),
        413,
    ),
    Case(
        "offer of HTTP/2 and a body that never ends",
        request("POST", "/v1/completions", FINE, *HTTP2_OFFER)[:-1],
        408,
    ),
    Case(
        "offer of HTTP/2 and a coding that is none",
        request("POST", "/v1/completions", None, "transfer-encoding: rot13", *HTTP2_OFFER),
        400,
    ),
    Case("blank lines first", b"\r\n\r\n" + request("GET", "/health"), 200),
    Case("unknown model", request("GET", "/v1/models/none"), 404),
    *(
        Case(f"{method} of completions", request(method), 405)
        for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")
    ),
    Case("DELETE of health", request("DELETE", "/health"), 405),
    Case("POST of models", request("POST", "/v1/models", b"{}"), 405),
]
MEDIA = [
    Case("text", request("POST", "/v1/completions", FINE, media_type="text/plain"), 415),
    Case("no type", request("POST", "/v1/completions", FINE, media_type=None), 415),
    Case("form", request(body=FINE, media_type="application/x-www-form-urlencoded"), 415),
    Case("multipart", request(body=FINE, media_type="multipart/form-data; boundary=a"), 415),
    Case("JSON lines", request(body=FINE, media_type="application/jsonl"), 415),
    Case("gzip", request("POST", "/v1/completions", FINE, "content-encoding: gzip"), 415),
    Case("text on second", request("POST", "/openai/completions", FINE, media_type="a/b"), 400),
    Case("charset", request(body=FINE, media_type="application/json; charset=utf-8"), 200),
    Case("capitals", request(body=FINE, media_type="Application/JSON"), 200),
]
BODIES = [
    *(
        Case(f"body {body[:20]!r}", request(body=body), 400)
        for body in (
            b"", b"null", b"[]", b"1", b'"x"', b"{", b"{]", b"{'a': 1}", b"\x00",
            FINE + b"x", FINE[:-1] + b",}", b"\xef\xbb\xbf" + FINE,
            FINE.decode().encode("utf-16"), FINE.replace(b"x", b"\xff"),
            b"[" * 33, b"[" * 20_000, b'{"a":' * 5000,
            b'{"prompt": ' + b"[" * 40 + b"]" * 40 + b"}",
        )
    ),
    *(
        Case(f"{field} = {value[:20]}", with_field(value, field), 400)
        for field, value in (
            ("max_tokens", "-1"), ("max_tokens", "1.5"), ("max_tokens", "true"),
            ("max_tokens", '"1"'), ("max_tokens", "NaN"), ("max_tokens", "1e999"),
            ("max_tokens", str(1 << 70)), ("max_tokens", "9" * 5000),
            ("temperature", "-Infinity"), ("temperature", "[]"), ("n", "0"), ("n", "1000000000"),
            ("best_of", "1000000000"), ("stop", "[[]]"), ("stop", "{}"), ("stop", '[""]'),
            ("logit_bias", '{"-1": 1}'), ("logit_bias", "[1]"), ("logit_bias", '{"a": 1}'),
            ("stream", "1"), ("echo", '"yes"'), ("logprobs", "1000"), ("seed", str(1 << 64)),
            ("stream_options", "[]"), ("allowed_token_ids", "[-1]"), ("prompt", "[]"),
            ("prompt", "[1, \"a\"]"), ("prompt", "[-1]"), ("prompt", "[99999]"), ("prompt", "{}"),
            ("prompt", "[[]]"), ("prompt", "[null]"),
        )
    ),
    Case("lone surrogate", request(body=FINE.replace(b'"x"', b'"\\ud800"')), 400),
    Case("duplicated key", request(body=FINE[:-1] + b', "max_tokens": 1}'), 200),
    Case("null fields", with_field("null"), 200),
    Case("control characters in the prompt", completion(prompt="\x00\x1b[2J"), 200),
]  # fmt: skip
CASES = [*NO_HTTP, *LENGTHS, *ROUTES, *MEDIA, *BODIES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hand_made_request_has_its_answer(strict_edges: Server, case: Case) -> None:
    """A refusal is a JSON error with a message; none shows the inside."""
    answer = exchange(strict_edges, case.raw)
    assert answer is not None
    assert answer.status == case.status, answer
    assert answer.headers["content-type"] == "application/json"
    document = json.loads(answer.body)
    if case.status != 200:
        assert set(document) == {"error"}
        assert document["error"]["message"]
        assert b"Traceback" not in answer.body
    if case.status == 405:
        assert answer.headers["allow"]


def test_the_server_still_answers_after_all_cases(strict_edges: Server) -> None:
    """In the same process, and without one error of its own in the log."""
    assert strict_edges.process.poll() is None
    assert strict_edges.complete("x", max_tokens=1)
    assert not [line for line in strict_edges.log if "failed:" in line or "Traceback" in line], (
        strict_edges.log
    )


def test_a_head_request_has_no_body(strict_edges: Server) -> None:
    """Whatever its status."""
    answer = exchange(strict_edges, request("HEAD", "/nothing"), has_body=False)
    assert answer is not None
    assert answer.status == 404


@pytest.mark.parametrize("id", ["a" * 129, "a b", "é", "a;b", ""])
def test_an_unusable_request_id_is_replaced(strict_edges: Server, id: str) -> None:
    """It goes into logs and headers."""
    answer = exchange(strict_edges, request("GET", "/health", None, f"x-request-id: {id}"))
    assert answer is not None
    assert answer.headers["x-request-id"].startswith("req_")
