"""Where the server listens: checked before a model is loaded, with one line for what is wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Iterator

from ortolan_runtime.errors import OrtolanError
from ortolan_server.auth import is_loopback
from ortolan_server.keys import KeyRing, key_file
from ortolan_server.settings import ServerSettings

_BACKLOG = 1024


class ListenError(OrtolanError):
    """The address cannot be listened on, or should not be."""


@contextlib.contextmanager
def listening(settings: ServerSettings) -> Iterator[socket.socket]:
    """Give a listening socket, and remove it afterwards. Raises ListenError and KeyFileError."""
    with contextlib.closing(listen(settings)) as listener:
        try:
            yield listener
        finally:
            if settings.unix_socket is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(settings.unix_socket)


def listen(settings: ServerSettings) -> socket.socket:
    """Return a listening socket. Raises ListenError and KeyFileError."""
    _check_tls(settings)
    if settings.unix_socket is not None:
        return _listen_on_path(settings.unix_socket)
    keys = KeyRing(key_file(settings.keys_file), settings.api_key)
    listener = _listen_on_port(settings.host, settings.port)
    if not (is_local(listener) or keys.has_keys or settings.no_auth):
        listener.close()
        raise ListenError(
            f"{settings.host} can be reached by others, and there are no keys: make one with "
            "`ortolan keys add NAME`, or say --no-auth to let everybody in"
        )
    return listener


def is_local(listener: socket.socket) -> bool:
    """Return whether only this machine can reach ``listener``."""
    return listener.family == socket.AF_UNIX or is_loopback(listener.getsockname()[0])


def url_of(listener: socket.socket, settings: ServerSettings) -> str:
    """Return the address that clients use."""
    if settings.unix_socket is not None:
        return f"unix:{settings.unix_socket}"
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    scheme = "http" if settings.tls_certificate is None else "https"
    return f"{scheme}://{shown}:{port}"


def _listen_on_port(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise ListenError(f"cannot listen on {host}: {exc.strerror}; check --host") from exc
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRNOTAVAIL:  # no interface of this machine has it
            raise ListenError(f"cannot listen on {host}: {exc.strerror}; check --host") from exc
        raise ListenError(
            f"cannot listen on {host} port {port}: {exc.strerror}; choose another with --port"
        ) from exc
    return listener


def _listen_on_path(path: str) -> socket.socket:
    """Listen on a Unix socket that its owner and group may use."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
        os.chmod(path, 0o660)
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        why = exc.strerror or str(exc)
        raise ListenError(f"cannot listen on {path}: {why}; check --unix-socket") from exc
    return listener


def _remove_stale(path: str) -> None:
    """Remove a socket that a process left behind; one that answers stays."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def _check_tls(settings: ServerSettings) -> None:
    if settings.tls_certificate is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        why = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or str(exc)
        raise ListenError(
            f"the certificate {settings.tls_certificate} with the key {settings.tls_key} cannot "
            f"be used: {why}; check --tls-certificate and --tls-key"
        ) from exc
