"""The dialects that the server speaks, one line each."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ortolan_server.dialects.base import Dialect
from ortolan_server.dialects.chat import CHAT
from ortolan_server.dialects.openai import OPENAI
from ortolan_server.dialects.second import SECOND
from ortolan_server.dialects.together import TOGETHER
from ortolan_server.dialects.tokensmind import TOKENSMIND

DIALECTS = (
    OPENAI,
    TOKENSMIND,
    SECOND,
    TOGETHER,
    CHAT,
)


def served_dialects(v1_dialect: str) -> tuple[Dialect, ...]:
    """Return the dialects by route, with ``v1_dialect`` at ``/v1``."""
    if v1_dialect == OPENAI.name:
        return DIALECTS
    chosen = next(dialect for dialect in DIALECTS if dialect.name == v1_dialect)
    at_v1 = msgspec.structs.replace(chosen, base_path=OPENAI.base_path)
    return (at_v1, *(dialect for dialect in DIALECTS if dialect is not OPENAI))


def dialect_finder(dialects: tuple[Dialect, ...]) -> Callable[[str], Dialect]:
    """Return a function that finds the dialect whose paths begin as a given one does."""
    with_base = [dialect for dialect in dialects if dialect.base_path]
    by_path = {dialect.path: dialect for dialect in dialects}

    def find(path: str) -> Dialect:
        exact = by_path.get(path.rstrip("/"))
        under = (d for d in with_base if path.startswith(f"{d.base_path}/"))
        return exact or next(under, dialects[0])

    return find
