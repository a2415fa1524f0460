"""The page at ``/``: static files of this package, sent as they are.

It is served without a key, since it is where a person enters one: it holds nothing of this server,
only files that anybody can read in the package. What it asks for then wants the key as always.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

ROOT = "/"
ASSETS = "/page/"

_INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The page is its own files and asks its own server alone. Trusted types leave no way to make
# markup of text, so what a model says stays text.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "cache-control": "no-cache",  # names carry no version: each use asks whether it is current
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Asset(msgspec.Struct, frozen=True, kw_only=True):
    """One file as it is sent."""

    body: bytes
    media_type: str
    etag: str


class Page:
    """The page's files, read once, and the one application that sends them."""

    def __init__(self) -> None:
        self._assets = _assets()

    @property
    def paths(self) -> frozenset[str]:
        """Return the paths of all files."""
        return frozenset(self._assets)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a file, or that the client's copy of it is current. Raises HTTPException."""
        asset = self._assets.get(scope["path"])
        if asset is None:
            raise HTTPException(404)
        is_current = _is_current(Headers(scope=scope).get("if-none-match"), asset.etag)
        has_body = not is_current and scope["method"] != "HEAD"
        await send(
            {
                "type": "http.response.start",
                "status": 304 if is_current else 200,
                "headers": _raw_headers(asset, with_length=not is_current),
            }
        )
        await send({"type": "http.response.body", "body": asset.body if has_body else b""})


def _assets() -> Mapping[str, Asset]:
    """Return every file by its path."""
    folder = resources.files("ortolan_server") / "pages"
    found = {}
    for file in folder.iterdir():
        extension = file.name[file.name.rfind(".") :]
        if extension in _TYPES:
            path = ROOT if file.name == _INDEX else ASSETS + file.name
            found[path] = _asset(file.read_bytes(), _TYPES[extension])
    return found


def _asset(body: bytes, media_type: str) -> Asset:
    etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    return Asset(body=body, media_type=media_type, etag=etag)


def _is_current(if_none_match: str | None, etag: str) -> bool:
    """Return whether one of the client's copies is the file; proxies may have weakened its tag."""
    if if_none_match is None:
        return False
    copies = [copy.strip().removeprefix("W/") for copy in if_none_match.split(",")]
    return etag in copies or "*" in copies


def _raw_headers(asset: Asset, *, with_length: bool) -> list[tuple[bytes, bytes]]:
    headers = {**_HEADERS, "etag": asset.etag, "content-type": asset.media_type}
    if with_length:
        headers["content-length"] = str(len(asset.body))
    return [(name.encode(), value.encode()) for name, value in headers.items()]
