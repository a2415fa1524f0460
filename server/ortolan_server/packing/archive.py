"""Writes a tar archive whose bytes depend on its content alone: names sorted, times fixed."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

SUMS_NAME = "SHA256SUMS"

_EPOCH = 315_532_800  # 1980-01-01: what a zip can hold too, and what tar does not warn of
# Wheels and quantised weights hardly shrink: the lowest level is three times as fast.
_LEVEL = 1


class Entry(msgspec.Struct, frozen=True):
    """One file: its name in the archive, where it is, and whether it is run."""

    name: str
    source: Path
    is_executable: bool = False


def write_archive(out: Path, root: str, entries: Iterable[Entry]) -> str:
    """Write ``entries`` below the folder ``root``, with a list of their digests; return its digest.

    ``out`` appears when it is complete.
    """
    ordered = sorted(entries, key=lambda entry: entry.name)
    sums = "".join(f"{_sha256(entry.source)}  {entry.name}\n" for entry in ordered)
    with _appearing(out) as temporary:
        with (
            temporary.open("wb") as raw,
            gzip.GzipFile("", "wb", _LEVEL, raw, mtime=_EPOCH) as packed,
            tarfile.open(mode="w", fileobj=packed, format=tarfile.PAX_FORMAT) as archive,
        ):
            _add(archive, f"{root}/{SUMS_NAME}", io.BytesIO(sums.encode()), len(sums), 0o644)
            for entry in ordered:
                with entry.source.open("rb") as source:
                    mode = 0o755 if entry.is_executable else 0o644
                    size = entry.source.stat().st_size
                    _add(archive, f"{root}/{entry.name}", source, size, mode)
        return _sha256(temporary)


def _add(archive: tarfile.TarFile, name: str, source: io.IOBase, size: int, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, mode, _EPOCH
    archive.addfile(info, source)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """Give a sibling of ``out`` to write to; it takes that name at the end, or goes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.rename(out)
    finally:
        temporary.unlink(missing_ok=True)
