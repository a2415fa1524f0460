"""Reading a request's body: media type, size, depth and JSON, before anything is made of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec
import numpy as np
from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from ortolan_server.errors import ApiError, too_large

MAX_DEPTH = 32

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as int8: one level down, one level up
_decoder = msgspec.json.Decoder()


class ClientDisconnected(Exception):
    """The client left before its request was whole."""


async def read_json(scope: Scope, receive: Receive, max_body_bytes: int) -> object:
    """Return the JSON value of a request's body. Raises ApiError and ClientDisconnected."""
    headers = Headers(scope=scope)
    check_length(headers, max_body_bytes)
    check_media_type(headers)
    return decode_json(await read_body(receive, max_body_bytes))


def check_media_type(headers: Mapping[str, str]) -> None:
    """Refuse anything but plain JSON. Raises ApiError."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise _unsupported(f"`content-encoding` must be absent, got {encoding[:40]!r}")
    given = headers.get("content-type", "")
    media_type = given.split(";", 1)[0].strip().lower()
    if media_type != "application/json":
        # Some of the others a browser sends across origins without asking the server first.
        raise _unsupported(
            f"`content-type` must be application/json, got {given[:60]!r}; with curl add "
            "-H 'content-type: application/json'"
        )


def check_length(headers: Mapping[str, str], limit: int) -> None:
    """Refuse a body that is announced as longer than ``limit`` bytes. Raises ApiError."""
    announced = headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limit:
        raise too_large(limit)


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return the whole body. Raises ApiError over ``limit`` bytes, ClientDisconnected."""
    parts = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise too_large(limit)
        if not message.get("more_body", False):
            return b"".join(parts)


def decode_json(raw: bytes) -> object:
    """Return the value that ``raw`` holds. Raises ApiError when it is no JSON or too deep."""
    if _depth(raw) > MAX_DEPTH:
        raise _bad_json(f"is nested deeper than {MAX_DEPTH} levels")
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        return _decode_leniently(raw, exc)


def _decode_leniently(raw: bytes, error: Exception) -> object:
    """Return a body whose only fault are numbers such as NaN, so that their field can be named."""
    if b"NaN" not in raw and b"Infinity" not in raw and b"out of range" not in str(error).encode():
        raise _bad_json(f"is no valid JSON ({error})") from None
    try:
        value: object = json.loads(raw)
        json.dumps(value, ensure_ascii=False).encode()  # fails on a lone surrogate
    except (ValueError, RecursionError):
        raise _bad_json(f"is no valid JSON ({error})") from None
    return value


def _depth(raw: bytes) -> int:
    """Return how deep the arrays and objects of ``raw`` are nested.

    Checked before decoding: nesting that exhausts a small stack ends the process.
    """
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return 0
    steps = np.frombuffer(_STRINGS.sub(b"", raw).translate(_STEPS, _NOT_BRACKETS), np.int8)
    return int(steps.cumsum(dtype=np.int64).max(initial=0))


def _bad_json(what: str) -> ApiError:
    return ApiError(400, f"the request's body {what}", code="invalid_json")


def _unsupported(message: str) -> ApiError:
    return ApiError(415, message, code="unsupported_media_type", headers={"connection": "close"})
