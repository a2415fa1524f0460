"""The kinds of value that a request's field may have: each reads a JSON value and describes itself.

The OpenAPI documents are made from ``schema`` and the validator from ``read``, so what is promised
and what is checked cannot drift. JSON has one kind of number: 16 and 16.0 are the same integer, and
a bool is no number.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import msgspec

from ortolan_runtime.params import SEED_MAX, SEED_MIN
from ortolan_runtime.text import Tokenizer
from ortolan_server.chat_template import ChatTemplate

Schema = dict[str, Any]

_MAX_TEXT_CHARACTERS = 4096


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What of a served model values are checked against.

    ``others`` are served beside it, for documents that describe them all.
    """

    model: str
    vocab_size: int
    context_length: int
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None = None
    others: tuple[str, ...] = ()


class Refused(Exception):
    """A value is outside its range; ``requirement`` is the range in words.

    ``value`` is the part that is wrong, where that is not the whole; ``words`` say what was given
    instead of showing it, where that would be long or a prompt.
    """

    def __init__(
        self, requirement: str, value: object = msgspec.UNSET, *, words: str | None = None
    ) -> None:
        self.requirement = requirement
        self.value = value
        self.words = words
        super().__init__(requirement)


class Kind(Protocol):
    """One kind of value."""

    def read(self, value: object, facts: Facts) -> Any:
        """Return the checked value in the form that the canonical request holds. Raises Refused."""

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema of the values that ``read`` takes."""


class Integer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole number; a value in ``off`` switches the field off and is read as 0."""

    minimum: int = SEED_MIN
    maximum: int = SEED_MAX
    off: tuple[int, ...] = ()

    def read(self, value: object, facts: Facts) -> int:
        """Return the number. Raises Refused."""
        number = whole_number(value)
        if number in self.off:
            return 0
        if number is None or not self.minimum <= number <= self.maximum:
            raise Refused(self._requirement())
        return number

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        within: Schema = {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}
        return {"anyOf": [within, {"enum": list(self.off)}]} if self.off else within

    def _requirement(self) -> str:
        words = f"must be an integer {_range(self.minimum, self.maximum)}"
        return words + (f" ({' or '.join(map(str, self.off))} is off)" if self.off else "")


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """A finite number; ``is_open`` leaves the minimum itself out."""

    minimum: float
    maximum: float
    is_open: bool = False

    def read(self, value: object, facts: Facts) -> float:
        """Return the number as a float. Raises Refused."""
        number = finite_number(value)
        if number is None or not self._holds(number):
            raise Refused(self._requirement())
        return number

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        low = "exclusiveMinimum" if self.is_open else "minimum"
        return {"type": "number", low: self.minimum, "maximum": self.maximum}

    def _holds(self, number: float) -> bool:
        is_above = number > self.minimum if self.is_open else number >= self.minimum
        return is_above and number <= self.maximum

    def _requirement(self) -> str:
        if self.is_open:
            return f"must be a number > {self.minimum:g} and <= {self.maximum:g}"
        return f"must be a number within {self.minimum:g}..{self.maximum:g}"


class Flag(msgspec.Struct, frozen=True):
    """True or false."""

    def read(self, value: object, facts: Facts) -> bool:
        """Return the value. Raises Refused."""
        if not isinstance(value, bool):
            raise Refused("must be true or false")
        return value

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        return {"type": "boolean"}


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A string of ``minimum`` to ``maximum`` characters."""

    minimum: int = 0
    maximum: int = _MAX_TEXT_CHARACTERS

    def read(self, value: object, facts: Facts) -> str:
        """Return the string. Raises Refused."""
        if not isinstance(value, str) or not self.minimum <= len(value) <= self.maximum:
            raise Refused(f"must be a string of {self.minimum} to {self.maximum} characters")
        return value

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        return {"type": "string", "minLength": self.minimum, "maxLength": self.maximum}


class ModelName(msgspec.Struct, frozen=True):
    """A model's name; whether it is served is checked later, since that is another error."""

    def read(self, value: object, facts: Facts) -> str:
        """Return the name. Raises Refused."""
        return Text(minimum=1, maximum=256).read(value, facts)

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        return {"type": "string", "enum": [facts.model, *facts.others]}


class Texts(msgspec.Struct, frozen=True, kw_only=True):
    """A string or a list of at most ``maximum`` strings, none of them empty; [] is none."""

    maximum: int
    allows_single: bool = True

    def read(self, value: object, facts: Facts) -> tuple[str, ...]:
        """Return the strings. Raises Refused."""
        if isinstance(value, str) and self.allows_single:
            value = [value]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise Refused(self._requirement())
        if len(value) > self.maximum:
            raise Refused(self._requirement(), words=f"a list of {len(value)}")
        if "" in value:
            raise Refused("must hold no empty string")
        return tuple(value)

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        one: Schema = {"type": "string", "minLength": 1}
        many: Schema = {"type": "array", "items": one, "maxItems": self.maximum}
        return {"anyOf": [one, many]} if self.allows_single else many

    def _requirement(self) -> str:
        one = "a string or " if self.allows_single else ""
        return f"must be {one}a list of at most {self.maximum} strings"


class Unsupported(msgspec.Struct, frozen=True):
    """A field that a provider documents and this server cannot honour: only null is taken."""

    def read(self, value: object, facts: Facts) -> None:
        """Raise Refused."""
        raise Refused("is not supported by this server; leave it out")

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        return {"type": "null"}


def whole_number(value: object) -> int | None:
    """Return ``value`` as an int when it is a whole number (16 or 16.0), else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def finite_number(value: object) -> float | None:
    """Return ``value`` as a float when it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _range(minimum: int, maximum: int) -> str:
    if maximum == SEED_MAX and minimum == SEED_MIN:
        return "of 64 bits with a sign"
    return f">= {minimum}" if maximum == SEED_MAX else f"within {minimum}..{maximum}"
