"""``POST /admin/models``: another bundle takes a model's place."""

from __future__ import annotations

from typing import Any

from starlette.types import Receive, Scope

from ortolan_server.body import read_json
from ortolan_server.errors import invalid_value
from ortolan_server.kinds import Schema
from ortolan_server.models import Models

PATH = "/admin/models"
REQUEST_SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "bundle": {
            "type": "string",
            "minLength": 1,
            "description": "The path of a bundle on the server.",
        },
        "model": {
            "type": ["string", "null"],
            "minLength": 1,
            "description": "The model whose place it takes; needed when there are several.",
        },
    },
    "required": ["bundle"],
}
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
        fields = body if isinstance(body, dict) else {}
        bundle, name = fields.get("bundle"), fields.get("model")
        if not isinstance(bundle, str) or not bundle:
            raise invalid_value("bundle", "`bundle` must be the path of a bundle on the server")
        if name is not None and not isinstance(name, str):
            raise invalid_value("model", "`model` must be the name of the model to replace")
        new, old = await self._models.replace(bundle, name)
        return {"id": new, "object": "model", "replaced": old}
