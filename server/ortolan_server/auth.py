"""Who may ask: one bearer key for every route but those that tell of the server's health."""

from __future__ import annotations

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ortolan_server.errors import AUTHENTICATION, ApiError

OPEN_PATHS = frozenset({"/health", "/ready"})


class Authentication:
    """Passes requests that carry the key; others end with an ApiError of status 401."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._digest = _digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on. Raises ApiError."""
        if scope["path"].rstrip("/") not in OPEN_PATHS:
            self._check(Headers(scope=scope).get("authorization"))
        await self._app(scope, receive, send)

    def _check(self, header: str | None) -> None:
        scheme, _, token = (header or "").strip().partition(" ")
        given = token.strip().encode("latin-1", errors="replace")
        # Digests have one length, so the comparison's time tells nothing about the key.
        is_right = hmac.compare_digest(_digest(given), self._digest)
        if scheme.lower() != "bearer" or not is_right:
            raise _unauthorized("missing" if header is None else "wrong")


def _unauthorized(what: str) -> ApiError:
    return ApiError(
        401,
        f"the API key is {what}; send it as `Authorization: Bearer KEY`",
        type=AUTHENTICATION,
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
