"""The dialects that the server speaks, one line each."""

from __future__ import annotations

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
