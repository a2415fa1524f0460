"""A request's fields as declared data, and the one reader that turns a JSON object into values.

A dialect is a table of fields. Null means absent. An unknown field is ignored and named in a
response header, or refused when the server is strict. An error names one field.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ortolan_server.errors import ApiError, invalid_value
from ortolan_server.kinds import Facts, Kind, Refused, Schema

_SHOWN_CHARACTERS = 60
# A body may hold a hundred thousand names, and to compare each would hold up every other request.
_COMPARED_NAMES = 64


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field: how it is spelt, what it may hold, what it means when it is absent.

    ``target`` is its name in the canonical request (``name`` itself when empty). ``strict`` is the
    narrower kind that a strict server holds it to. ``aliases`` are further spellings.
    """

    name: str
    kind: Kind
    doc: str
    default: object = None
    target: str = ""
    required: bool = False
    strict: Kind | None = None
    aliases: tuple[str, ...] = ()

    @property
    def canonical_name(self) -> str:
        """Return the field's name in the canonical request."""
        return self.target or self.name

    def kind_for(self, is_strict: bool) -> Kind:
        """Return the kind to check against."""
        return self.strict if is_strict and self.strict is not None else self.kind


class FieldTable(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of one dialect in the order in which they are checked."""

    dialect: str
    fields: tuple[Field, ...]
    is_strict: bool = False

    def names(self) -> list[str]:
        """Return every spelling that the dialect knows."""
        return [name for field in self.fields for name in (field.name, *field.aliases)]

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema of a request body."""
        properties: dict[str, Schema] = {}
        for field in self.fields:
            properties[field.name] = self._property(field, facts)
            for alias in field.aliases:
                properties[alias] = properties[field.name] | {"x-alias-of": field.name}
        return {
            "type": "object",
            "properties": properties,
            "required": [field.name for field in self.fields if field.required],
            "additionalProperties": not self.is_strict,
        }

    def _property(self, field: Field, facts: Facts) -> Schema:
        schema = field.kind_for(self.is_strict).schema(facts)
        if not field.required:
            schema = _or_null(schema)
        extra: Schema = {"description": field.doc}
        if field.default is not None:
            extra["default"] = field.default
        return schema | extra


class Values(msgspec.Struct, frozen=True):
    """What a body said: values by canonical name, the names given, the names nobody knows."""

    by_name: dict[str, Any]
    given: frozenset[str]
    ignored: tuple[str, ...]


def read_values(body: object, table: FieldTable, facts: Facts) -> Values:
    """Return the checked values of a decoded body, defaults filled in. Raises ApiError."""
    if not isinstance(body, dict):
        raise ApiError(400, "the request's body must be a JSON object", code="invalid_value")
    names = set(table.names())
    ignored = tuple(name for name in body if name not in names)
    if ignored and table.is_strict:
        raise _unknown_field(ignored[0], table)
    by_name: dict[str, Any] = {}
    given = set()
    for field in table.fields:
        name, value = _given(field, body)
        if value is not None:
            given.add(field.canonical_name)
            by_name[field.canonical_name] = _read(field, name, value, table, facts)
        elif field.required:
            raise _missing(field, ignored, table)
        else:
            by_name[field.canonical_name] = field.default
    return Values(by_name, frozenset(given), ignored)


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` is likely meant to be, or None."""
    found = difflib.get_close_matches(name[:64].lower(), list(known), n=1, cutoff=0.75)
    return found[0] if found else None


def replaced(fields: Iterable[Field], *replacements: Field) -> tuple[Field, ...]:
    """Return ``fields`` with those of the same name replaced, and new ones added at the end."""
    by_name = {field.name: field for field in fields}
    return tuple((by_name | {field.name: field for field in replacements}).values())


def shown(value: object) -> str:
    """Return ``value`` as short JSON-like text."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, UnicodeEncodeError):
        text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def _given(field: Field, body: Mapping[str, object]) -> tuple[str, object]:
    """Return the spelling that the body uses and its value, None when absent."""
    found = [
        (name, body[name]) for name in (field.name, *field.aliases) if body.get(name) is not None
    ]
    if not found:
        return field.name, None
    (first, value), *others = found
    for other, different in others:
        if different != value or isinstance(different, bool) != isinstance(value, bool):
            both = f"`{first}` ({shown(value)}) and `{other}` ({shown(different)})"
            raise invalid_value(first, f"{both} are one field and must not differ")
    return first, value


def _read(field: Field, name: str, value: object, table: FieldTable, facts: Facts) -> object:
    try:
        return field.kind_for(table.is_strict).read(value, facts)
    except Refused as refusal:
        wrong = value if refusal.value is msgspec.UNSET else refusal.value
        given = refusal.words or shown(wrong)
        raise invalid_value(
            name, f"`{name}` {refusal.requirement}, got {given} ({table.dialect} dialect)"
        ) from None


def _missing(field: Field, ignored: tuple[str, ...], table: FieldTable) -> ApiError:
    meant = nearest_name(field.name, ignored[:_COMPARED_NAMES])
    hint = f"; is `{_printable(meant)}` meant to be it?" if meant else ""
    message = f"`{field.name}` is required and must not be null{hint} ({table.dialect} dialect)"
    return invalid_value(field.name, message)


def _unknown_field(name: str, table: FieldTable) -> ApiError:
    meant = nearest_name(name, table.names())
    hint = f"; did you mean `{meant}`?" if meant else ""
    shown = _printable(name)
    return ApiError(
        400,
        f"`{shown}` is no field of the {table.dialect} dialect{hint}",
        param=shown,
        code="unknown_field",
    )


def _or_null(schema: Schema) -> Schema:
    if schema.get("type") == "null":
        return schema
    if "anyOf" in schema:
        return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    return schema | {"type": [schema["type"], "null"]}


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in name[:_SHOWN_CHARACTERS])
