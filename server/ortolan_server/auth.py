"""Who may ask: a bearer key for every route but the server's health and the page that asks for it.

While there are no keys, a server on this machine alone answers only to its own names: a page in a
browser could otherwise reach it under a name that was made to point here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ortolan_server.errors import AUTHENTICATION, ApiError
from ortolan_server.keys import Key, KeyRing

OPEN_PATHS = frozenset({"/health", "/ready"})
_ADMIN = "/admin/"


class Authentication:
    """Passes requests that carry a key, or all while there are none; others end with a 401.

    The key goes on in the scope's state, see ``key_of``. Keys of kind ``access`` do not
    open paths that begin with ``api_only``; those below /admin want a key of kind ``admin`` always.
    ``open_paths`` are passed without a key, beside those of health.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing,
        api_only: Iterable[str],
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        self._app = app
        self._keys = keys
        self._api_only = tuple(api_only)
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on. Raises ApiError."""
        path = scope["path"]
        is_open = path.rstrip("/") in OPEN_PATHS or path in self._open_paths
        if not is_open and (self._keys.has_keys or path.startswith(_ADMIN)):
            key = self._find(Headers(scope=scope).get("authorization"))
            if key.kind != "admin" and path.startswith(_ADMIN):
                raise _wrong_kind("admin", key)
            if key.kind == "access" and path.startswith(self._api_only):
                raise _wrong_kind("api", key)
            scope["state"]["key"] = key
        await self._app(scope, receive, send)

    def _find(self, header: str | None) -> Key:
        scheme, _, token = (header or "").strip().partition(" ")
        key = self._keys.find(token.strip().encode("latin-1"))  # as headers are decoded
        if key is None or scheme.lower() != "bearer":
            raise _unauthorized("missing" if header is None else "wrong, revoked or expired")
        return key


class OwnNames:
    """Passes requests that name this server in their Host header, while there are no keys."""

    def __init__(self, app: ASGIApp, keys: KeyRing, names: Iterable[str]) -> None:
        self._app = app
        self._keys = keys
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on. Raises ApiError."""
        host = Headers(scope=scope).get("host")
        is_open = scope["path"].rstrip("/") in OPEN_PATHS or self._keys.has_keys
        # A browser always sends the header; what leaves it out is none.
        if not is_open and host and not self._is_own(_bare(host)):
            raise ApiError(
                403,
                f"the `host` header must name this server, got {host[:80]!r}; allow it with "
                "--allowed-host, or add a key",
                code="host_not_allowed",
            )
        await self._app(scope, receive, send)

    def _is_own(self, host: str) -> bool:
        return host == "localhost" or host in self._names or is_loopback(host)


def key_of(scope: Scope) -> Key | None:
    """Return the key that let the request in, None where there are no keys."""
    key: Key | None = scope["state"].get("key")
    return key


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is an address of this machine alone, or its usual name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bare(host: str) -> str:
    """Return a Host header without its port, and an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().rstrip(".")


def _unauthorized(what: str) -> ApiError:
    return ApiError(
        401,
        f"the API key is {what}; send it as `Authorization: Bearer KEY`",
        type=AUTHENTICATION,
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def _wrong_kind(wanted: str, key: Key) -> ApiError:
    return ApiError(
        401,
        f"this route needs a key of kind `{wanted}`, got one of kind `{key.kind}`",
        type=AUTHENTICATION,
        code="wrong_key_type",
    )
