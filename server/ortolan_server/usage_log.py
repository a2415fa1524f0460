"""The usage log: one line of JSON for each completion request, in files that rotate.

Lines are written by a thread of their own, since a slow disk must not hold up a stream. What cannot
be written is dropped, and said so in the log of the server: accounting never stops the service.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
from pathlib import Path

import msgspec

from ortolan_runtime.errors import OrtolanError
from ortolan_server.observation import UsageRecord

logger = logging.getLogger("ortolan.server")

_CLOSE_S = 5.0
_encoder = msgspec.json.Encoder()


class UsageLogError(OrtolanError):
    """The usage log cannot be opened."""


class UsageLog:
    """Appends to ``path``; beyond ``max_bytes`` it becomes ``path.1``, and so on up to ``kept``.

    ``kept`` is 1 at least. Raises UsageLogError.
    """

    def __init__(self, path: Path, *, max_bytes: int, kept: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._dropped = 0
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        try:
            self._file = self._open()
        except OSError as exc:
            raise UsageLogError(
                f"the usage log {path} cannot be opened: {exc.strerror}; check --usage-log"
            ) from exc
        self._thread = threading.Thread(target=self._run, name="ortolan-usage", daemon=True)
        self._thread.start()

    def put(self, record: UsageRecord) -> None:
        """Append one record, soon."""
        self._lines.put(_encoder.encode(record) + b"\n")

    def close(self) -> None:
        """Write what is left."""
        self._lines.put(None)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write(line)
            except OSError as exc:
                self._drop(exc)
        os.close(self._file)

    def _write(self, line: bytes) -> None:
        size = os.fstat(self._file).st_size
        if size and size + len(line) > self._max_bytes:
            self._rotate()
            size = 0
        # One call, without a buffer: no line is ever torn by the end of the process.
        if os.write(self._file, line) < len(line):
            os.ftruncate(self._file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rotate(self) -> None:
        # Gone where the last try could not open it anew: another move would push out an old file.
        if self._path.exists():
            for number in range(self._kept, 0, -1):
                older = self._path if number == 1 else self._numbered(number - 1)
                if older.exists():
                    os.replace(older, self._numbered(number))
        full, self._file = self._file, self._open()
        os.close(full)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _open(self) -> int:
        return os.open(self._path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)

    def _drop(self, error: OSError) -> None:
        self._dropped += 1
        if self._dropped.bit_count() == 1:  # the 1st, 2nd, 4th, 8th: a full disk fills no log
            logger.error("%d usage records could not be written: %s", self._dropped, error.strerror)
