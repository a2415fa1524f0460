"""Reading JSON that may be hostile."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from ortolan_server.body import MAX_DEPTH, check_length, check_media_type, decode_json
from ortolan_server.errors import ApiError


def test_depth_is_counted_outside_strings() -> None:
    """Brackets in a prompt are text, whatever is escaped before them."""
    brackets = "[{" * 1000
    assert decode_json(f'{{"a": "{brackets}"}}'.encode()) == {"a": brackets}
    assert decode_json(f'{{"a": "\\"{brackets}\\\\"}}'.encode()) == {"a": f'"{brackets}\\'}


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nesting_beyond_the_limit_is_refused_before_decoding(opening: str) -> None:
    """Deep nesting can end a process whose threads have small stacks."""
    with pytest.raises(ApiError, match="nested deeper"):
        decode_json(opening.encode() * 1_000_000)
    closing = {"[": "]"}.get(opening, "}")
    right = opening * (MAX_DEPTH - 1) + "1" + closing * (MAX_DEPTH - 1)
    assert decode_json(right.encode())


def test_numbers_that_are_none_are_let_through_to_their_field() -> None:
    """So that the error can name it."""
    assert math.isnan(decode_json(b"NaN"))  # type: ignore[arg-type]
    assert decode_json(b"[1e999, -Infinity]") == [math.inf, -math.inf]


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff", b'"\\ud800"', b'["\\ud800", NaN]', b"NaN NaN", b"{'a': 1}"]
)
def test_what_is_no_json_is_the_clients_fault(raw: bytes) -> None:
    """Whatever exception the decoder has for it."""
    with pytest.raises(ApiError) as caught:
        decode_json(raw)
    assert caught.value.status == 400
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-type": "application/x-www-form-urlencoded", "user-agent": "Mozilla/5.0"},
    ],
)
def test_other_media_types_are_refused(headers: Mapping[str, str]) -> None:
    """Before the body is read."""
    with pytest.raises(ApiError) as caught:
        check_media_type(headers)
    assert caught.value.status == 415


def test_an_announced_length_over_the_limit_is_refused() -> None:
    """Without waiting for a byte of it."""
    check_length({"content-length": "10"}, 10)
    with pytest.raises(ApiError) as caught:
        check_length({"content-length": "11"}, 10)
    assert caught.value.status == 413
