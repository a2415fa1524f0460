"""Known faults of other servers in HTTP itself (cases A-HTTP-*)."""

from __future__ import annotations

import gzip
import json
import socket

import httpx
import pytest

from serving import Server

KEY = "sk-tést-7"  # the key of the server `keyed`
COMPLETIONS = (
    "/v1/completions",
    "/tokensmind/v1/completions",
    "/openai/completions",
    "/completions",
)
NULLABLE = (
    "temperature",
    "top_p",
    "n",
    "best_of",
    "stream",
    "stop",
    "logprobs",
    "echo",
    "seed",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "top_k",
    "min_p",
    "stream_options",
    "user",
    "suffix",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "cache_salt",
    "prompt_logprobs",
)


def test_null_is_absent_for_every_optional_field(plain: Server) -> None:
    """A-HTTP-01."""
    free = plain.text("Hi", max_tokens=2)
    everything = dict.fromkeys(NULLABLE) | {"temperature": 0, "max_tokens": 2}
    assert plain.text("Hi", **everything) == free
    for name in NULLABLE:
        fields = {"max_tokens": 2, name: None}
        document = plain.complete("Hi", **fields)
        if name != "temperature":
            assert document["choices"][0]["text"].startswith(free)


@pytest.mark.parametrize("path", COMPLETIONS)
@pytest.mark.parametrize(
    "raw",
    [
        b'{"model": "m", "prompt":',
        b"",
        b"[]",
        b'"x"',
        b"5",
        b"null",
        b'{"prompt":"\xff"}',
        b'\xff\xfe{"a":1}',
        b'{"prompt":"\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"prompt": [' + b"[" * 50 + b"]" * 50 + b"]}",
    ],
)
def test_a_body_that_is_no_json_object_is_the_clients_fault(
    plain: Server, path: str, raw: bytes
) -> None:
    """A-HTTP-02."""
    plain.refused(raw, path=path)


def test_only_json_is_taken(plain: Server) -> None:
    """A-HTTP-02, media types."""
    raw = json.dumps(plain.body("Hi", max_tokens=1)).encode()
    for right in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/json"):
        assert plain.post("/v1/completions", raw, content_type=right).status_code == 200
    for wrong in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"):
        response = plain.post("/v1/completions", raw, content_type=wrong)
        assert response.status_code == 415
        assert response.json()["error"]["type"] == "invalid_request_error"
        second = plain.post("/openai/completions", raw, content_type=wrong)
        assert second.status_code == 400
    response = plain.client.post("/v1/completions", content=raw)
    assert response.status_code == 415


def test_curl_without_the_media_type_is_told_how_to_give_it(plain: Server) -> None:
    """It calls the body of ``-d`` a form; what is accepted does not depend on who sends it."""
    form = {"content_type": "application/x-www-form-urlencoded", "user_agent": "curl/8.5.0"}
    response = plain.post("/v1/completions", b"{}", **form)
    assert response.status_code == 415
    assert "-H 'content-type: application/json'" in response.json()["error"]["message"]


GUARDED = [
    *(("POST", path) for path in COMPLETIONS),
    ("POST", "/v1/completions/"),
    ("POST", "//v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/plain"),
    ("GET", "/openai/models"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/tokenizer_info"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
    ("GET", "/metrics"),
    ("GET", "/no-such-path"),
    ("DELETE", "/v1/completions"),
]


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_every_path_but_the_open_ones_wants_the_key(keyed: Server, method: str, path: str) -> None:
    """A-HTTP-03."""
    wrong: list[bytes | None] = [None, b"Bearer", b"Bearer wrong", b"Basic x", b"Bearer \xff\xfe"]
    wrong += [KEY.encode(), f"Token {KEY}".encode()]
    with httpx.Client(base_url=keyed.url) as anonymous:
        for header in wrong:
            headers = {} if header is None else {b"authorization": header}
            response = anonymous.request(method, path, headers=headers, json={})
            assert response.status_code == 401
            error = response.json()["error"]
            assert error["type"] == "authentication_error"
            assert error["code"] == "invalid_api_key"
            assert error["message"]


def test_the_right_key_opens_whatever_the_case_of_its_scheme(keyed: Server) -> None:
    """A-HTTP-03, the right key; health needs none."""
    assert keyed.text("Hi", max_tokens=1)
    with httpx.Client(base_url=keyed.url) as client:
        for scheme in (b"Bearer", b"bearer", b"BEARER"):
            headers = {b"authorization": scheme + b" " + KEY.encode()}
            assert client.get("/v1/models", headers=headers).status_code == 200
        for path in ("/health", "/ready"):
            assert client.get(path).status_code == 200


def test_unknown_fields_are_ignored_and_named(plain: Server, strict: Server) -> None:
    """A-HTTP-04."""
    extra = {"foo": 1, "metadata": {}, "max_completion_tokens": 2, "a\nb": 1, "naïve": 2}
    body = plain.body("Hi", max_tokens=2, skip_special_tokens=True, **extra)
    response = plain.post("/v1/completions", body)
    assert response.status_code == 200
    assert response.headers["x-ortolan-ignored"] == (
        "foo, metadata, max_completion_tokens, a%0Ab, na%C3%AFve"
    )
    error = strict.refused(strict.body("Hi", temprature=1))
    assert error["code"] == "unknown_field"
    assert error["param"] == "temprature"
    assert "did you mean `temperature`?" in error["message"]


def test_a_documented_field_is_never_ignored(plain: Server) -> None:
    """A-HTTP-04: Second's own spelling of temperature, and what cannot be honoured."""
    path = "/openai/completions"
    greedy = plain.text("Hi", max_tokens=8)
    without = {"temperature": ..., "path": path}
    assert plain.text("Hi", max_tokens=8, tempature=0, **without) == greedy
    assert plain.text("Hi", max_tokens=8, tempature=0, temperature=0, path=path) == greedy
    error = plain.refused(plain.body("Hi", tempature=1, temperature=0), path=path)
    assert "`temperature`" in error["message"]
    assert "`tempature`" in error["message"]
    assert plain.refused(plain.body("Hi", suffix="x"))["param"] == "suffix"


def test_a_body_over_the_limit_is_refused_before_it_is_read(plain: Server) -> None:
    """A-HTTP-05, with a length and without."""
    big = b'{"prompt": "' + b"a" * (2 << 20) + b'"}'
    assert plain.refused(big, status=413)["code"] == "request_too_large"
    assert plain.refused(big, path="/openai/completions")["code"] == "request_too_large"
    response = plain.client.post(
        "/v1/completions",
        content=(big[i : i + 65536] for i in range(0, len(big), 65536)),
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 413
    announced = _raw(plain, b"content-length: 209715200\r\n")
    assert announced.startswith(b"HTTP/1.1 413")
    assert plain.text("Hi", max_tokens=1)


def test_a_compressed_body_is_not_unpacked(plain: Server) -> None:
    """A-HTTP-05, a bomb."""
    bomb = gzip.compress(b"a" * (50 << 20))
    response = plain.post("/v1/completions", bomb, content_encoding="gzip")
    assert response.status_code == 415
    assert plain.text("Hi", max_tokens=1)


def test_a_model_that_is_not_served_is_not_found(plain: Server) -> None:
    """A-HTTP-06."""
    for path in COMPLETIONS:
        status = 400 if path.startswith("/openai/") else 404
        body = plain.body("Hi", model="no-such-model")
        error = plain.refused(body, path=path, status=status)
        assert error["code"] == "model_not_found"
        assert error["param"] == "model"
        assert "no-such-model" in error["message"]
        assert "plain" in error["message"]
        for wrong in ("", 5, ["plain"]):
            assert plain.refused(plain.body("Hi", model=wrong), path=path)["param"] == "model"
    for path in COMPLETIONS[:3]:
        for absent in (None, ...):
            assert plain.refused(plain.body("Hi", model=absent), path=path)["param"] == "model"
    for absent in (None, ...):
        document = plain.complete("Hi", model=absent, path="/completions", max_tokens=1)
        assert document["model"] == "plain"


@pytest.mark.parametrize("base", ["/v1", "/tokensmind/v1", "/openai", ""])
def test_the_models_are_listed_under_every_base_url(plain: Server, base: str) -> None:
    """Clients ask there what is served."""
    listed = plain.client.get(f"{base}/models").json()["data"]
    assert [model["id"] for model in listed] == ["plain"]
    assert plain.client.get(f"{base}/models/plain").json() == listed[0]
    missing = plain.client.get(f"{base}/models/other/one")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE", "QUERY", "HEAD"])
@pytest.mark.parametrize("path", COMPLETIONS)
def test_a_wrong_method_is_told_the_right_one(plain: Server, path: str, method: str) -> None:
    """With a body or without."""
    for content in (b"", b"{}"):
        response = plain.client.request(method, path, content=content)
        assert response.status_code == 405
        assert response.headers["allow"] == "POST"
        if method != "HEAD":
            assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1", "/v1/completion", "/v1/completions//", "/%00", "/é"])
def test_an_unknown_path_is_not_found_and_redirected_nowhere(plain: Server, path: str) -> None:
    """Not even to one with a slash more or less."""
    response = plain.client.post(path, json={})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


ORIGIN = "http://localhost:3000"


@pytest.mark.parametrize("path", COMPLETIONS)
def test_a_browsers_preflight_needs_no_key(keyed: Server, path: str) -> None:
    """A-HTTP-07."""
    headers = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    response = httpx.options(keyed.url + path, headers=headers)
    assert response.status_code in (200, 204)
    assert response.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in response.headers["access-control-allow-headers"].lower()
    private = headers | {"access-control-request-private-network": "true"}
    response = httpx.options(keyed.url + path, headers=private)
    assert response.headers.get("access-control-allow-private-network") == "true"
    stranger = httpx.options(keyed.url + path, headers=headers | {"origin": "http://evil.test"})
    assert "access-control-allow-origin" not in stranger.headers


def test_errors_and_streams_carry_the_origin_too(keyed: Server) -> None:
    """A-HTTP-07, responses."""
    origin = {"origin": ORIGIN}
    answers = [
        httpx.post(f"{keyed.url}/v1/completions", headers=origin, json={}),
        keyed.client.post("/v1/completions", headers=origin, json={}),
        keyed.client.get("/no-such-path", headers=origin),
        keyed.client.post("/v1/completions", headers=origin, json=keyed.body(stream=True)),
    ]
    assert [answer.status_code for answer in answers] == [401, 400, 404, 200]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == ORIGIN


def _raw(server: Server, headers: bytes) -> bytes:
    """Return the first bytes of the answer to a request whose body never comes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
            + b"content-type: application/json\r\n"
            + headers
            + b"\r\n"
        )
        return connection.recv(4096)
