"""Writes a folder beside the place where it will be, and gives it its name when it is complete."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ortolan_runtime.errors import OrtolanError

_ABANDONED_AFTER_S = 60.0  # longer than a process takes from making a folder to locking it
# Linux's values, for renameat2(2), which Python does not offer.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def replaced_folder(destination: Path) -> Iterator[Path]:
    """Give a temporary sibling of ``destination`` to fill; on success it takes that name, else it
    goes.

    Every file is synced to disk before the rename. A folder already at ``destination`` is replaced
    in the last moment and is intact after any failure. What a process that was killed has left
    behind goes at the next call. Raises OrtolanError when there is no room.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(destination)
    # mkdtemp gives 0700, while the folder should be as readable as any that the user makes.
    temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    temporary.chmod(0o777 & ~_umask())
    lock = os.open(temporary, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends, however it ends
        yield temporary
        for file in temporary.iterdir():
            _sync(file)
        _sync(temporary)
        _replace(temporary, destination)
        _sync(destination.parent)
    except OSError as exc:
        if exc.errno not in _NO_ROOM:
            raise
        raise OrtolanError(
            f"{destination.parent} has no room for {destination.name} ({exc.strerror}); "
            "free some, or choose another place"
        ) from exc
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(lock)


def _replace(temporary: Path, destination: Path) -> None:
    """Give ``temporary`` the name ``destination``; a folder already there becomes ``temporary``."""
    if not destination.exists():
        temporary.rename(destination)
    elif not _exchange(temporary, destination):
        _put_aside(temporary, destination)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names at once, so that no moment is without either; False where that fails."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    here, names = ctypes.c_int(_AT_FDCWD), (os.fsencode(one), os.fsencode(other))
    return bool(renameat2(here, names[0], here, names[1], ctypes.c_uint(_RENAME_EXCHANGE)) == 0)


def _put_aside(temporary: Path, destination: Path) -> None:
    """Rename ``temporary`` to ``destination``, whose folder is kept aside until that is done."""
    aside = Path(tempfile.mkdtemp(prefix=f".{destination.name}.old.", dir=destination.parent))
    old = aside / destination.name
    destination.rename(old)
    try:
        temporary.rename(destination)
    except BaseException:
        old.rename(destination)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _remove_abandoned(destination: Path) -> None:
    """Remove temporary folders of processes that were killed: old ones that nobody has locked."""
    for folder in destination.parent.glob(f".{glob.escape(destination.name)}.????????"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < _ABANDONED_AFTER_S:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
