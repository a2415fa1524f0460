"""The outermost layers: a request id on every response, and every failure as a JSON error."""

from __future__ import annotations

import difflib
import logging
import re
import secrets
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ortolan_server.body import ClientDisconnected
from ortolan_server.dialects.base import Dialect
from ortolan_server.errors import ApiError, internal
from ortolan_server.responses import send_json, send_json_and_linger

logger = logging.getLogger("ortolan.server")

_USABLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestIds:
    """Names each request, by the client's own ``x-request-id`` where that is usable."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, its id in the scope's state and in the response."""
        given = Headers(scope=scope).get("x-request-id", "")
        id = given if _USABLE_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = id
            await send(message)

        await self._app(scope, receive, send_with_id)


class Errors:
    """Turns what the application raises into the error of the path's dialect."""

    def __init__(self, app: ASGIApp, dialect_of: Callable[[str], Dialect]) -> None:
        self._app = app
        self._dialect_of = dialect_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; answer for it when it fails."""
        has_started = False

        async def watched_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ClientDisconnected:
            return
        except Exception as exc:
            error = self._error(exc, scope)
            if not has_started:
                await self._answer(error, scope, receive, send)

    async def _answer(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        dialect = self._dialect_of(scope["path"])
        is_completion = scope["path"].rstrip("/") == dialect.path
        status = dialect.status(error) if is_completion else error.status
        document = dialect.error(error)
        if error.headers.get("connection") == "close":
            await send_json_and_linger(
                send, receive, document, status=status, headers=error.headers
            )
        else:
            await send_json(send, document, status=status, headers=error.headers)

    def _error(self, exc: Exception, scope: Scope) -> ApiError:
        if isinstance(exc, ApiError):
            return exc
        if isinstance(exc, HTTPException):
            return _of_routing(exc, scope)
        id = request_id(scope)
        # The message may hold a prompt, so only the exception's type and place are logged.
        logger.error("request %s failed: %s", id, place_of(exc))
        return internal(id)


def request_id(scope: Scope) -> str:
    """Return the id that ``RequestIds`` gave to the request."""
    id: str = scope["state"]["request_id"]
    return id


def _of_routing(exc: HTTPException, scope: Scope) -> ApiError:
    method, path = scope["method"][:16], scope["path"][:80]
    if exc.status_code == 405:
        allowed = (exc.headers or {}).get("Allow", "")
        message = f"the method of {path!r} must be {allowed}, got {method}"
        return ApiError(405, message, code="method_not_allowed", headers={"allow": allowed})
    return ApiError(404, f"there is no path {path!r}{_meant(path, scope)}", code="not_found")


def _meant(path: str, scope: Scope) -> str:
    """Return a word on the path that is near, as where a base URL has /v1 twice or not at all."""
    routes = scope["router"].routes if "router" in scope else ()
    known = [route.path for route in routes if isinstance(route, Route)]
    near = difflib.get_close_matches(path.rstrip("/"), known, n=1, cutoff=0.8)
    return f"; did you mean {near[0]!r}?" if near else ""


def place_of(exc: BaseException) -> str:
    """Return the type of ``exc`` and the frames it passed, without its message."""
    frames = []
    trace = exc.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{type(exc).__name__} at {' > '.join(frames[-6:])}"
