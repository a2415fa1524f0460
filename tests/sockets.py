"""HTTP over raw sockets: requests that no client library would send, and their answers."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any

from serving import Server

TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Answer:
    """One response: its status, its headers in lower case, its whole body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """Return the error that the body holds."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


def connect(server: Server, *, receive_buffer: int | None = None) -> socket.socket:
    """Return a connection; a small ``receive_buffer`` makes a reader that stalls."""
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(TIMEOUT_S)
    connection.connect(("127.0.0.1", server.port))
    return connection


def request(
    method: str = "POST",
    path: str = "/v1/completions",
    body: bytes | None = None,
    *lines: str,
    media_type: str | None = "application/json",
) -> bytes:
    """Return a request; ``lines`` are further header lines."""
    head = [f"{method} {path} HTTP/1.1", "host: localhost", *lines]
    if body is not None:
        head.append(f"content-length: {len(body)}")
        if media_type is not None:
            head.append(f"content-type: {media_type}")
    return "\r\n".join([*head, "", ""]).encode() + (body or b"")


def completion(path: str = "/v1/completions", **fields: Any) -> bytes:
    """Return a completion request to the model `babbling`."""
    body = {"model": "babbling", "prompt": "x", "temperature": 0, "max_tokens": 1, **fields}
    return request("POST", path, json.dumps(body).encode())


def read_answer(connection: socket.socket, *, has_body: bool = True) -> Answer | None:
    """Return the next response, or None when the connection ends before it."""
    head = _read_until(connection, b"\r\n\r\n")
    if not head:
        return None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    status = int(first.split()[1])
    if status == 100:
        return read_answer(connection)
    if not has_body:
        return Answer(status, headers, b"")
    if headers.get("transfer-encoding") == "chunked":
        return Answer(status, headers, _read_chunks(connection))
    return Answer(status, headers, _read(connection, int(headers.get("content-length", "0"))))


def exchange(server: Server, raw: bytes, *, has_body: bool = True) -> Answer | None:
    """Send ``raw`` on a connection of its own and return the first response."""
    with connect(server) as connection:
        # An early refusal may close the connection while the rest is being sent.
        with contextlib.suppress(OSError):
            connection.sendall(raw)
        return read_answer(connection, has_body=has_body)


def is_closed(connection: socket.socket, timeout_s: float = 3.0) -> bool:
    """Return whether the server ends the connection within ``timeout_s``."""
    connection.settimeout(timeout_s)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def _read_until(connection: socket.socket, mark: bytes) -> bytes:
    raw = b""
    while not raw.endswith(mark):
        part = connection.recv(1)
        if not part:
            return b""
        raw += part
    return raw


def _read(connection: socket.socket, size: int) -> bytes:
    raw = b""
    while len(raw) < size and (part := connection.recv(size - len(raw))):
        raw += part
    return raw


def _read_chunks(connection: socket.socket) -> bytes:
    raw = b""
    while size := int(_read_until(connection, b"\r\n") or b"0", 16):
        raw += _read(connection, size)
        _read(connection, 2)
    return raw
