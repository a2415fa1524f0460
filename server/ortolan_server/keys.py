"""API keys: a file that holds their digests, and the ring that knows what the file says now.

The secret of a key is shown once, when it is made; what is kept cannot be turned back into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from ortolan_runtime.errors import InvalidParameter, OrtolanError

logger = logging.getLogger("ortolan.server")

Kind = Literal["api", "access", "admin"]
Clock = Callable[[], float]

_PREFIX = "ort"
_CHECK_EVERY_S = 1.0
_NOBODY = hashlib.sha256(secrets.token_bytes(32)).hexdigest()


class KeyFileError(OrtolanError):
    """The file of keys cannot be used."""


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a key may use; None and an empty list are no limit. Raises InvalidParameter."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidParameter(name, "must be >= 1", value)


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key without its secret; times in seconds since 1970."""

    id: str
    name: str
    kind: Kind
    sha256: str
    created: float
    expires: float | None = None
    is_revoked: bool = False
    limits: KeyLimits = KeyLimits()

    def is_good(self, now: float) -> bool:
        """Return whether the key opens anything."""
        return not self.is_revoked and (self.expires is None or now < self.expires)


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[Key, ...] = ()


_decoder = msgspec.json.Decoder(_Document)


def default_key_file(environment: Mapping[str, str]) -> Path:
    """Return where keys are kept when no other file is named."""
    home = Path(environment.get("HOME") or "/")
    return Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "ortolan" / "keys.json"


def key_file(name: str | None) -> Path | None:
    """Return the path of a file that a setting names."""
    return None if name is None else Path(name)


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return all keys, none when there is no file. Raises KeyFileError."""
    try:
        # A group may read it: Kubernetes gives a secret to a pod's group, and it is root's.
        if stat.S_IMODE(path.stat().st_mode) & 0o037:
            raise KeyFileError(
                f"{path} must be writable to its owner alone and readable to none but its group; "
                f"run `chmod 600 {path}`"
            )
        return _decoder.decode(path.read_bytes()).keys
    except FileNotFoundError:
        return ()
    except OSError as exc:
        raise KeyFileError(f"{path} cannot be read: {exc.strerror}") from exc
    except (msgspec.MsgspecError, InvalidParameter) as exc:
        raise KeyFileError(f"{path} is no file of keys: {exc}") from exc


def add_key(
    path: Path,
    name: str,
    *,
    kind: Kind = "api",
    expires: float | None = None,
    limits: KeyLimits | None = None,
    clock: Clock = time.time,
) -> tuple[Key, str]:
    """Add a key and return it with its secret. Raises InvalidParameter and KeyFileError."""
    if not name.strip() or not name.isprintable():
        raise InvalidParameter("name", "must be printable and not empty", ascii(name))
    id = secrets.token_hex(4)
    secret = f"{_PREFIX}_{id}_{secrets.token_urlsafe(32)}"
    key = Key(
        id=id,
        name=name,
        kind=kind,
        sha256=_digest(secret.encode()),
        created=clock(),
        expires=expires,
        limits=limits or KeyLimits(),
    )
    with _locked(path):
        _write(path, (*read_keys(path), key))
    return key, secret


def revoke_key(path: Path, id: str) -> Key:
    """Make a key useless, and return it. Raises KeyFileError when there is none of that id."""
    with _locked(path):
        keys = read_keys(path)
        revoked = [msgspec.structs.replace(key, is_revoked=True) for key in keys if key.id == id]
        if not revoked:
            raise KeyFileError(f"{path} has no key {id!r}; `ortolan keys list` shows all")
        _write(path, tuple(revoked[0] if key.id == id else key for key in keys))
    return revoked[0]


class KeyRing:
    """The keys that are good now; the file is read again when it has changed.

    Raises KeyFileError when it is made; a file that is broken later leaves the keys as they were.
    """

    def __init__(
        self, path: Path | None, single_key: str | None = None, *, clock: Clock = time.time
    ) -> None:
        self._path = path
        self._clock = clock
        self._single = None if single_key is None else _single(single_key)
        self._by_id: dict[str, Key] = {}
        self._checked = clock()
        self._mark = self._stat()
        if path is not None:
            self._by_id = {key.id: key for key in read_keys(path)}

    @property
    def has_keys(self) -> bool:
        """Return whether a key is needed; keys that are revoked or expired count as well."""
        self._refresh()
        return self._single is not None or bool(self._by_id)

    def find(self, secret: bytes) -> Key | None:
        """Return the key that ``secret`` belongs to, if it is good."""
        self._refresh()
        digest = _digest(secret)
        parts = secret.decode(errors="replace").split("_", 2)
        key = self._by_id.get(parts[1]) if len(parts) == 3 else None
        # Digests have one length, and a missing key is compared as well, so that the time that
        # passes tells nothing.
        is_known = hmac.compare_digest(digest, _NOBODY if key is None else key.sha256)
        if key is not None and is_known:
            return key if key.is_good(self._clock()) else None
        single = self._single
        is_single = hmac.compare_digest(digest, _NOBODY if single is None else single.sha256)
        return single if is_single else None

    def _refresh(self) -> None:
        now = self._clock()
        if self._path is None or 0 <= now - self._checked < _CHECK_EVERY_S:
            return
        self._checked = now
        mark = self._stat()
        if mark == self._mark:
            return
        self._mark = mark
        try:
            keys = read_keys(self._path)
        except KeyFileError as exc:
            logger.error("the keys stay as they were: %s", exc)
            return
        if keys or not self._by_id:  # a file that is gone does not open the door
            self._by_id = {key.id: key for key in keys}
            logger.info("read %d keys", len(keys))

    def _stat(self) -> tuple[int, int, int] | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _single(secret: str) -> Key:
    return Key(
        id="single",
        name="single",
        kind="api",
        sha256=_digest(secret.encode(errors="surrogateescape")),
        created=0,
    )


def _digest(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time change the file. Raises KeyFileError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as exc:
        raise KeyFileError(f"{path} cannot be written: {exc.strerror}") from exc
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(path: Path, keys: tuple[Key, ...]) -> None:
    """Replace the file in one step; it is never readable for others, not even for a moment."""
    raw = msgspec.json.format(msgspec.json.encode(_Document(keys)))
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as exc:
        temporary.unlink(missing_ok=True)
        raise KeyFileError(f"{path} cannot be written: {exc.strerror}") from exc
