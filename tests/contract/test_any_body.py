"""Whatever the body: never a 5xx, never an error that is not of the contract's shape.

Bodies are made of known names with likely and unlikely values, and of any JSON at all. The quick
run makes 50 for each dialect, the slow one 5,000.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving import Server, events

PATHS = (
    "/v1/completions",
    "/tokensmind/v1/completions",
    "/openai/completions",
    "/completions",
    "/v1/chat/completions",
)
STATUSES = {200, 400, 404, 413, 415}

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
small = st.sampled_from([-2, -1, 0, 1, 2, 3, 16, 128, 129, 1.0, 1.5, 0.5, 2.0, True, None, "1"])
ids = st.lists(st.integers(-1, 270), max_size=6)
prompts = st.text(max_size=30) | ids | st.lists(ids, max_size=3) | st.lists(st.text(max_size=9))
NUMBERS = (
    "n",
    "best_of",
    "temperature",
    "tempature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "logprobs",
    "top_logprobs",
    "min_tokens",
    "prompt_logprobs",
    "truncate_prompt_tokens",
)
FLAGS = (
    "stream",
    "echo",
    "ignore_eos",
    "add_special_tokens",
    "skip_special_tokens",
    "return_token_ids",
    "include_stop_str_in_output",
)
likely: dict[str, st.SearchStrategy[Any]] = {
    "prompt": prompts,
    "messages": st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "", 5]), "content": anything}),
        max_size=2,
    ),
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=5),
    "logit_bias": st.dictionaries(st.integers(-1, 270).map(str) | st.text(max_size=3), small),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans() | anything}),
    "stop_token_ids": ids,
    "allowed_token_ids": ids,
    "bad_words": st.lists(st.text(max_size=4), max_size=3),
    "user": st.text(max_size=4),
    "cache_salt": st.text(max_size=4),
    **dict.fromkeys(NUMBERS, small),
    **dict.fromkeys(FLAGS, st.booleans() | st.none()),
}
mostly_likely = {name: value | anything for name, value in likely.items()}
bodies = st.fixed_dictionaries(
    {"model": st.just("speaker") | anything, "max_tokens": st.integers(0, 4)}, optional=likely
) | st.fixed_dictionaries({"model": st.just("speaker")}, optional=mostly_likely)


def check(server: Server, path: str, body: Any) -> None:
    """Send a body and check what comes back."""
    response = server.post(path, body)
    assert response.status_code in STATUSES, (body, response.text)
    if response.status_code != 200:
        check_error(response.json(), path)
    elif response.headers["content-type"].startswith("text/event-stream"):
        *chunks, done = events(response.content)
        assert done == "[DONE]", body
        assert all(json.loads(chunk)["choices"] is not None for chunk in chunks)
    else:
        document = response.json()
        assert document["choices"]
        json.dumps(document, allow_nan=False)


def check_error(document: Any, path: str) -> None:
    """Check an error's shape."""
    error = document["error"]
    assert isinstance(error["message"], str)
    assert error["type"] == "invalid_request_error"
    optional = {name: value for name, value in error.items() if name in ("param", "code")}
    if path != "/openai/completions":
        assert set(optional) == {"param", "code"}
    assert all(isinstance(value, str) or value is None for value in optional.values())
    assert len(error["message"]) < 500


@pytest.mark.parametrize("path", PATHS)
def test_any_body_is_answered_in_the_contracts_shape(path: str, speaker: Server) -> None:
    """The quick run."""
    run(speaker, path, 50)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_5000_bodies_are_answered_in_the_contracts_shape(path: str, speaker: Server) -> None:
    """The slow run."""
    run(speaker, path, 5000)


def run(server: Server, path: str, count: int) -> None:
    """Send ``count`` bodies."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=quiet)
    @given(body=bodies | anything)
    def send(body: Any) -> None:
        check(server, path, body)

    send()
