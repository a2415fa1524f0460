"""What a client may be told when its request fails, and how failures of the runtime become that.

An ApiError is independent of dialects: it has the status and the words of the common contract, and
a dialect may map its ``code`` to another status when it renders it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ortolan_runtime.errors import (
    ContextLengthExceeded,
    EngineBusy,
    EngineClosed,
    InvalidParameter,
    OrtolanError,
)

INVALID_REQUEST = "invalid_request_error"
AUTHENTICATION = "authentication_error"
RATE_LIMIT = "rate_limit_error"
SERVER = "server_error"

_RETRY_AFTER_S = "1"
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ApiError(Exception):
    """A refusal or failure with its HTTP status; the message is one line that repeats no prompt."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = headers
        super().__init__(message)


def invalid_value(param: str | None, message: str) -> ApiError:
    """Return the 400 for a field that is outside its range."""
    return ApiError(400, message, param=param, code="invalid_value")


def context_length_exceeded(context: int, prompt_tokens: int, max_tokens: int) -> ApiError:
    """Return the 400 for a prompt and completion that do not fit, with the true numbers."""
    # Client libraries recognise this error by the words "maximum context length is".
    return ApiError(
        400,
        f"This model's maximum context length is {context} tokens, but the request needs "
        f"{prompt_tokens + max_tokens}: {prompt_tokens} in the prompt and {max_tokens} as "
        "`max_tokens`; shorten the prompt or lower `max_tokens`",
        param="max_tokens" if prompt_tokens < context else "prompt",
        code="context_length_exceeded",
    )


def model_not_found(model: str, served: Iterable[str]) -> ApiError:
    """Return the 404 for a model that is not among those ``served``."""
    shown = model if len(model) <= 80 else f"{model[:79]}…"
    return ApiError(
        404,
        f"`model` must be a served model ({', '.join(map(repr, served))}), got {shown!r}",
        param="model",
        code="model_not_found",
    )


def too_large(limit: int) -> ApiError:
    """Return the 413 for a body over ``limit`` bytes; the connection is closed after it."""
    return ApiError(
        413,
        f"the request's body must be <= {limit} bytes",
        code="request_too_large",
        headers={"connection": "close"},
    )


def unavailable(message: str) -> ApiError:
    """Return the 503 of a server that is draining or whose engine is down."""
    return ApiError(
        503, message, type=SERVER, code="unavailable", headers={"retry-after": _RETRY_AFTER_S}
    )


def overloaded() -> ApiError:
    """Return the 429 of a full queue."""
    return ApiError(
        429,
        "the queue is full; try again later",
        type=RATE_LIMIT,
        code="overloaded",
        headers={"retry-after": _RETRY_AFTER_S},
    )


def internal(request_id: str) -> ApiError:
    """Return the 500 for anything unforeseen; only the log says more."""
    return ApiError(500, f"the server failed on this request; its id is {request_id}", type=SERVER)


def from_runtime(error: OrtolanError) -> ApiError:
    """Return what a client is told of a failure of the runtime."""
    if isinstance(error, ContextLengthExceeded):
        return context_length_exceeded(error.context_length, error.prompt_tokens, error.max_tokens)
    if isinstance(error, InvalidParameter):
        return invalid_value(error.field, str(error))
    if isinstance(error, EngineBusy):
        return overloaded()
    if isinstance(error, EngineClosed):
        return unavailable("the server is shutting down or its engine has failed")
    return ApiError(500, "the engine failed on this request", type=SERVER)
