"""One line of a batch: a request in OpenAI's batch format, and the line that answers it.

A request is ``{"custom_id", "method": "POST", "url", "body"}``; an answer is ``{"id", "custom_id",
"response": {"status_code", "request_id", "body"}, "error"}``. A line that is no request is answered
with ``response`` null and an ``error`` that has its number, counted from 1.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import msgspec

from ortolan_server.body import decode_json
from ortolan_server.dialects.base import Dialect
from ortolan_server.dialects.chat import CHAT
from ortolan_server.dialects.openai import OPENAI
from ortolan_server.errors import ApiError
from ortolan_server.fields import shown
from ortolan_server.request import SEED_BITS

DIALECTS = {dialect.path: dialect for dialect in (OPENAI, CHAT)}

# Beyond so many characters, prompts that begin alike are not told apart when they are ordered.
_KEY_CHARACTERS = 1024
_MAX_ID_CHARACTERS = 512

Document = dict[str, Any]


class Line(msgspec.Struct, frozen=True):
    """One request: the number of its line, its own id, what it asks and of which dialect."""

    number: int
    custom_id: str
    dialect: Dialect
    body: Document


class LineError(Exception):
    """A line is no request; ``code`` is OpenAI's word for what is wrong with it."""

    def __init__(self, number: int, code: str, message: str, custom_id: str | None = None) -> None:
        self.number = number
        self.code = code
        self.custom_id = custom_id
        super().__init__(message)


def read_line(raw: bytes, number: int) -> Line:
    """Return the request that a line holds. Raises LineError."""
    try:
        fields = decode_json(raw)
    except ApiError as exc:
        reason = exc.message.removeprefix("the request's body ")
        raise LineError(number, "invalid_json_line", f"the line {reason}") from None
    if not isinstance(fields, dict):
        raise LineError(number, "invalid_json_line", "the line must be a JSON object")
    id = fields.get("custom_id")
    if not isinstance(id, str) or not 0 < len(id) <= _MAX_ID_CHARACTERS:
        requirement = f"must be a string of 1 to {_MAX_ID_CHARACTERS} characters"
        message = f"`custom_id` {requirement}, got {shown(id)}"
        raise LineError(number, "missing_required_parameter", message)
    method, url, body = (fields.get(name) for name in ("method", "url", "body"))
    if method != "POST":
        raise LineError(number, "invalid_method", f"`method` must be POST, got {shown(method)}", id)
    dialect = DIALECTS.get(url) if isinstance(url, str) else None
    if dialect is None:
        known = " or ".join(DIALECTS)
        raise LineError(number, "invalid_url", f"`url` must be {known}, got {shown(url)}", id)
    if not isinstance(body, dict):
        raise LineError(number, "missing_required_parameter", "`body` must be an object", id)
    return Line(number, id, dialect, body)


def prefix_key(line: Line) -> str:
    """Return what orders lines so that those whose prompts begin alike come together."""
    text = _beginning(line.body.get("messages" if line.dialect is CHAT else "prompt"))
    salt = str(line.body.get("cache_salt", ""))[:_KEY_CHARACTERS]
    return f"{line.dialect.path}\0{salt}\0{text[:_KEY_CHARACTERS]}"


def seed_of(custom_id: str) -> int:
    """Return the seed of a request that names none: the same in every run of the batch."""
    digest = hashlib.sha256(custom_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) >> (64 - SEED_BITS)


def answer_of(line: Line, status: int, body: Document) -> Document:
    """Return the line that answers a request."""
    response = {
        "status_code": status,
        "request_id": f"req_{secrets.token_hex(12)}",
        "body": body,
    }
    return _document(line.custom_id, response, None)


def error_of(error: LineError) -> Document:
    """Return the line that answers what is no request."""
    told = {"code": error.code, "message": str(error), "line": error.number}
    return _document(error.custom_id, None, told)


def _document(custom_id: str | None, response: Document | None, error: Document | None) -> Document:
    return {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }


def _beginning(prompt: object) -> str:
    """Return the beginning of a prompt as text that sorts as the prompt does."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not prompt:
        return ""
    if isinstance(prompt[0], int):
        ids = prompt[:_KEY_CHARACTERS]
        return "".join(chr(id % 0xD800) for id in ids if isinstance(id, int))
    if isinstance(prompt[0], dict):
        contents = [message.get("content") for message in prompt if isinstance(message, dict)]
        return "\0".join(str(content)[:_KEY_CHARACTERS] for content in contents)
    return _beginning(prompt[0])
