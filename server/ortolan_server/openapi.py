"""OpenAPI 3.1 documents, made from the declarations that also validate requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from ortolan_runtime.version import __version__
from ortolan_server import admin
from ortolan_server.dialects import shapes
from ortolan_server.dialects.base import Dialect
from ortolan_server.errors import ApiError
from ortolan_server.kinds import Facts, Schema

# What may go wrong on a completion route: the common status and the code.
_FAILURES: tuple[tuple[int, str | None], ...] = (
    (400, "invalid_value"),
    (401, "invalid_api_key"),
    (403, "host_not_allowed"),
    (404, "model_not_found"),
    (405, "method_not_allowed"),
    (408, None),
    (413, "request_too_large"),
    (415, "unsupported_media_type"),
    (429, "overloaded"),
    (431, None),
    (500, None),
    (503, "unavailable"),
)

# Each event of a stream, as readers of OpenAPI see one.
_EVENT: Schema = {
    "type": "object",
    "properties": {"data": {"type": "string", "description": "A chunk as JSON, or [DONE]."}},
    "required": ["data"],
}


def document(
    dialects: Iterable[Dialect],
    facts: Facts,
    *,
    title: str,
    is_strict: bool,
    has_key: bool,
    more: Mapping[str, Schema] | None = None,
) -> dict[str, Any]:
    """Return the document of the routes of ``dialects``, and of further paths ready made."""
    paths = {d.path: {"post": _operation(d, facts, is_strict=is_strict)} for d in dialects}
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": {**paths, **(more or {})},
        "components": {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }
    if has_key:
        made["security"] = [{"bearer": []}]
    return made


def _operation(dialect: Dialect, facts: Facts, *, is_strict: bool) -> Schema:
    body = dialect.table(is_strict=is_strict).schema(facts)
    return {
        "operationId": f"{dialect.name}_create",
        "summary": f"Create a completion ({dialect.title})",
        "tags": [dialect.title],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": _success(dialect), **_failures(dialect)},
    }


def _success(dialect: Dialect) -> Schema:
    header: Schema = {"schema": {"type": "string"}}
    return {
        "description": "The completion, as one object or, with `stream`, as server-sent events.",
        "headers": {"x-request-id": header, "x-ortolan-seed": header},
        "content": {
            "application/json": {"schema": dialect.renderer.reply_schema()},
            "text/event-stream": {"schema": _EVENT},
        },
    }


def admin_paths(facts: Facts) -> dict[str, Schema]:
    """Return the description of what admins may do."""
    failures = (400, 401, 403, 404, 405, 408, 409, 413, 415, 431, 500)
    return {
        admin.PATH: {
            "post": {
                "operationId": "admin_replace_model",
                "summary": "Serve another bundle in a model's place",
                "description": "Wants a key of kind `admin`, always.",
                "security": [{"bearer": []}],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": admin.TABLE.schema(facts)}},
                },
                "responses": {
                    "200": {
                        "description": "The new model is served.",
                        "content": {"application/json": {"schema": admin.REPLY_SCHEMA}},
                    },
                    **_errors(failures, shapes.error_schema(omits_nulls=False)),
                },
            }
        }
    }


def _failures(dialect: Dialect) -> dict[str, Schema]:
    schema = shapes.error_schema(omits_nulls=dialect.omits_null_error_fields)
    statuses = {dialect.status(ApiError(status, "", code=code)) for status, code in _FAILURES}
    return _errors(statuses, schema)


def _errors(statuses: Iterable[int], schema: Schema) -> dict[str, Schema]:
    return {
        str(status): {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": schema}},
        }
        for status in sorted(statuses)
    }
