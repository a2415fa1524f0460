"""Reads fields of a model's config.json, each checked as it is read."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ortolan_export.errors import SourceError

# Operators take sizes as int32, and so do lengths in a graph's inputs.
LARGEST_COUNT = 2**31 - 1


class Config:
    """A model's configuration: its own fields over the defaults of its family.

    ``names`` gives the file's own name of a field where it differs from the one asked for;
    ``defaults`` go by the names asked for. A field that is null counts as absent, except through
    ``get``. Every message names ``origin`` (the file), the field and what was found.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        *,
        defaults: Mapping[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
        origin: str = "config.json",
    ) -> None:
        self.fields = dict(fields)
        self.defaults = dict(defaults or {})
        self.names = dict(names or {})
        self.origin = origin

    def get(self, field: str) -> Any:
        """Return the field as it stands, null included; else the default; else None."""
        name = self.names.get(field, field)
        return self.fields[name] if name in self.fields else self.defaults.get(field)

    def has(self, field: str) -> bool:
        """Return whether the field or its default holds a value."""
        return self.get(field) is not None

    def count(self, field: str, *, otherwise: int | None = None, least: int = 1) -> int:
        """Return a whole number >= ``least`` that fits into 32 bits."""
        value = self._value(field, otherwise)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(field, f"must be a whole number >= {least}", value)
        if value > LARGEST_COUNT:
            raise self.wrong(field, f"must be at most {LARGEST_COUNT}", value)
        return value

    def number(self, field: str, *, otherwise: float | None = None) -> float:
        """Return a finite number."""
        value = self._value(field, otherwise)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(field, "must be a number", value)
        if not _is_finite(value):
            raise self.wrong(field, "must be finite", value)
        return float(value)

    def positive(self, field: str, *, otherwise: float | None = None) -> float:
        """Return a finite number > 0."""
        value = self.number(field, otherwise=otherwise)
        if value <= 0:
            raise self.wrong(field, "must be > 0", value)
        return value

    def flag(self, field: str, *, otherwise: bool = False) -> bool:
        """Return true or false."""
        value = self._value(field, otherwise)
        if not isinstance(value, bool):
            raise self.wrong(field, "must be true or false", value)
        return value

    def text(self, field: str, *, otherwise: str | None = None) -> str:
        """Return a string."""
        value = self._value(field, otherwise)
        if not isinstance(value, str):
            raise self.wrong(field, "must be a string", value)
        return value

    def numbers(self, field: str) -> tuple[float, ...]:
        """Return a list of finite numbers."""
        value = self._value(field, None)
        if not isinstance(value, list | tuple) or not all(_is_finite(item) for item in value):
            raise self.wrong(field, "must be a list of finite numbers", value)
        return tuple(float(item) for item in value)

    def section(self, field: str) -> Config:
        """Return an object inside the configuration; an absent one is empty."""
        value = self.get(field) or {}
        if not isinstance(value, Mapping):
            raise self.wrong(field, "must be an object", value)
        return Config(value, origin=f"{self.origin}: {field}")

    def wrong(self, field: str, requirement: str, value: object) -> SourceError:
        """Return the error for a field that holds ``value``."""
        shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:79]}…"
        name = self.names.get(field, field)
        return SourceError(f"{self.origin}: {name} {requirement}, got {shown}")

    def _value(self, field: str, otherwise: Any) -> Any:
        value = self.get(field)
        if value is None:
            value = otherwise
        if value is None:
            raise SourceError(f"{self.origin}: {self.names.get(field, field)} is missing")
        return value


def _is_finite(item: object) -> bool:
    if isinstance(item, bool) or not isinstance(item, int | float):
        return False
    # A comparison, since a whole number in JSON may be too large to become a float.
    return abs(item) <= sys.float_info.max
