"""``POST /admin/models``: another bundle takes a model's place."""

from __future__ import annotations

from typing import Any

from starlette.types import Receive, Scope

from ortolan_server.body import read_json
from ortolan_server.fields import Field, FieldTable, read_values
from ortolan_server.kinds import Schema, Text
from ortolan_server.models import Models

PATH = "/admin/models"
TABLE = FieldTable(
    dialect="admin",
    is_strict=True,  # a name that is not understood must not change what everybody is served
    fields=(
        Field(
            name="bundle",
            kind=Text(minimum=1),
            required=True,
            doc="The path of a bundle on the server.",
        ),
        Field(
            name="model",
            kind=Text(minimum=1),
            doc="The model whose place it takes; needed when there are several.",
        ),
    ),
)
REPLY_SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "The model that is served now."},
        "object": {"const": "model"},
        "replaced": {"type": "string", "description": "The name of the one before."},
    },
    "required": ["id", "object", "replaced"],
}


class ReplaceModel:
    """Loads ``{"bundle": PATH}`` and serves it in the place of ``{"model": NAME}``."""

    def __init__(self, models: Models, max_body_bytes: int) -> None:
        self._models = models
        self._max_body_bytes = max_body_bytes

    async def answer(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        """Return the name of the new model when it is served. Raises ApiError."""
        body = await read_json(scope, receive, self._max_body_bytes)
        values = read_values(body, TABLE, self._models.common_facts()).by_name
        new, old = await self._models.replace(values["bundle"], values["model"])
        return {"id": new, "object": "model", "replaced": old}
