"""Puts the table of a script into a document, between two lines that name the table."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def between_marks(document: str, name: str, lines: Sequence[str]) -> str:
    """Return ``document`` with ``lines`` between its marks of ``name``; without them, exit."""
    begin, end = f"<!-- {name} begins -->", f"<!-- {name} ends -->"
    before, _, rest = document.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(f"the document must have the lines {begin} and {end}")
    return "\n".join([f"{before}{begin}", *lines, f"{end}{after}"])
