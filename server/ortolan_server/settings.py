"""Every setting of the server, with its default and its accepted range."""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from ortolan_runtime.errors import InvalidParameter

# What a browser sends as Origin: a scheme and a host, perhaps a port, and nothing behind it.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the server listens, what it admits and how it ends. Raises InvalidParameter.

    Times are in seconds, sizes in bytes. ``v1_dialect`` is the dialect of ``/v1/completions``;
    ``strict`` refuses unknown fields and holds values to the providers' own documents.
    ``max_output_tokens`` caps a completion whose length the request leaves open. ``no_auth`` lets a
    server without keys listen where others can reach it; ``allowed_hosts`` are names in Host
    headers that a server without keys takes for its own. ``page`` serves the page at ``/``.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str | None = None
    v1_dialect: Literal["openai", "tokensmind"] = "openai"
    strict: bool = False
    page: bool = True
    api_key: str | None = None
    keys_file: str | None = None
    no_auth: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    tls_certificate: str | None = None
    tls_key: str | None = None
    unix_socket: str | None = None
    usage_log: str | None = None
    usage_log_bytes: int = 64 << 20
    usage_log_files: int = 8
    max_choices_per_request: int = 128
    max_output_tokens: int = 1024
    max_body_bytes: int = 1 << 20
    max_header_bytes: int = 16 << 10
    max_connections: int = 512
    header_timeout_s: float = 5.0
    body_timeout_s: float = 10.0
    # Longer than clients keep idle connections: AWS's balancers and nginx 60 s, Go 90 s. A request
    # that meets a connection being closed fails, and a POST is not sent again.
    idle_timeout_s: float = 120.0
    stalled_reader_timeout_s: float = 30.0
    heartbeat_s: float = 15.0
    grace_s: float = 20.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidParameter("port", "must be within 0..65535", self.port)
        if self.model_name == "":
            raise InvalidParameter("model_name", "must not be empty", "''")
        if self.api_key is not None and not self.api_key.strip():
            raise InvalidParameter("api_key", "must not be empty", "")
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_certificate"
            raise InvalidParameter(missing, "must be given with the other file of TLS", None)
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < math.inf:  # NaN fails too
                raise InvalidParameter(name, "must be > 0 and finite", getattr(self, name))
        if not 0 <= self.grace_s < math.inf:
            raise InvalidParameter("grace_s", "must be >= 0 and finite", self.grace_s)
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise InvalidParameter("cors_origin", "must be as https://example.org", origin)
        for host in self.allowed_hosts:
            if "/" in host or host.count(":") == 1:
                raise InvalidParameter(
                    "allowed_host", "must be a name without scheme or port", host
                )


_POSITIVE = (
    "usage_log_bytes",
    "usage_log_files",
    "max_choices_per_request",
    "max_output_tokens",
    "max_body_bytes",
    "max_header_bytes",
    "max_connections",
    "header_timeout_s",
    "body_timeout_s",
    "idle_timeout_s",
    "stalled_reader_timeout_s",
    "heartbeat_s",
)
