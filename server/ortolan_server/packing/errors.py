"""What can go wrong while an archive is made."""

from __future__ import annotations

from ortolan_runtime.errors import OrtolanError


class PackError(OrtolanError):
    """The archive cannot be made; the message says what to do."""
