"""The kinds of value that a request's field may have: each reads a JSON value and describes itself.

The OpenAPI documents are made from ``schema`` and the validator from ``read``, so what is promised
and what is checked cannot drift. JSON has one kind of number: 16 and 16.0 are the same integer, and
a bool is no number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from ortolan_runtime.params import SEED_MAX, SEED_MIN
from ortolan_runtime.text import Tokenizer

Schema = dict[str, Any]

_MAX_TEXT_CHARACTERS = 4096


class Facts(msgspec.Struct, frozen=True):
    """What of the served model values are checked against."""

    vocab_size: int
    context_length: int
    tokenizer: Tokenizer


class Refused(Exception):
    """A value is outside its range; ``requirement`` is the range in words.

    ``value`` replaces the field's value in the message, where that would be long or a prompt.
    """

    def __init__(self, requirement: str, value: object = msgspec.UNSET) -> None:
        self.requirement = requirement
        self.value = value
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
        lowest = min((self.minimum, *self.off))
        return {"type": "integer", "minimum": lowest, "maximum": self.maximum}

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
            raise Refused(self._requirement(), f"a list of {len(value)}")
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


class TokenIds(msgspec.Struct, frozen=True, kw_only=True):
    """A list of token ids of the vocabulary; with ``minimum`` 1 it may not be empty."""

    minimum: int = 0

    def read(self, value: object, facts: Facts) -> tuple[int, ...]:
        """Return the ids. Raises Refused."""
        if not isinstance(value, list) or len(value) < self.minimum:
            raise Refused(f"must be a list of at least {self.minimum} token ids")
        return read_token_ids(value, facts)

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        return {"type": "array", "items": token_id_schema(facts), "minItems": self.minimum}


class LogitBias(msgspec.Struct, frozen=True, kw_only=True):
    """A map of token id, written as a decimal string, to a bias of at most ``bound`` either way.

    With ``allows_text`` a key may also be text that is exactly one token.
    """

    bound: float | None = 100.0
    allows_text: bool = False

    def read(self, value: object, facts: Facts) -> dict[int, float]:
        """Return the biases by token id. Raises Refused."""
        if not isinstance(value, dict):
            raise Refused("must be a map of token id to bias")
        return {self._key(key, facts): self._bias(bias) for key, bias in value.items()}

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        bias: Schema = {"type": "number"}
        if self.bound is not None:
            bias |= {"minimum": -self.bound, "maximum": self.bound}
        schema: Schema = {"type": "object", "additionalProperties": bias}
        if not self.allows_text:
            schema["propertyNames"] = {"pattern": _ids_below(facts.vocab_size)}
        return schema

    def _key(self, key: str, facts: Facts) -> int:
        if len(key) <= 19 and key.isascii() and key.isdigit() and key == str(int(key)):
            if int(key) < facts.vocab_size:
                return int(key)
        if self.allows_text:
            ids = facts.tokenizer.encode(key[:_MAX_TEXT_CHARACTERS], add_special_tokens=False)
            if len(ids) == 1:
                return ids[0]
        also = ", or text that is one token" if self.allows_text else ""
        raise Refused(f"must have token ids within 0..{facts.vocab_size - 1}{also} as keys", key)

    def _bias(self, bias: object) -> float:
        number = finite_number(bias)
        bound = math.inf if self.bound is None else self.bound
        if number is None or abs(number) > bound:
            words = "finite numbers" if self.bound is None else f"numbers within ±{bound:g}"
            raise Refused(f"must have {words} as values", bias)
        return number


class Prompts(msgspec.Struct, frozen=True):
    """The four forms of a prompt: a string, strings, token ids, lists of token ids."""

    def read(self, value: object, facts: Facts) -> tuple[str | tuple[int, ...], ...]:
        """Return one entry a prompt, each a string or a tuple of ids. Raises Refused."""
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not value:
            raise Refused(_PROMPT_FORMS, _described(value))
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        if all(isinstance(item, list) for item in value):
            return tuple(self._ids(item, facts) for item in value)
        if any(isinstance(item, str | list | dict) or item is None for item in value):
            raise Refused(_PROMPT_FORMS, "a list of mixed items")
        return (self._ids(value, facts),)

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        text: Schema = {"type": "string"}
        ids: Schema = {"type": "array", "items": token_id_schema(facts), "minItems": 1}
        texts: Schema = {"type": "array", "items": text, "minItems": 1}
        lists: Schema = {"type": "array", "items": ids, "minItems": 1}
        return {"anyOf": [text, texts, ids, lists]}

    def _ids(self, ids: list[object], facts: Facts) -> tuple[int, ...]:
        if not ids:
            raise Refused("must hold no empty list of token ids", "[]")
        return read_token_ids(ids, facts)


class StreamOptions(msgspec.Struct, frozen=True):
    """``{"include_usage": bool, "continuous_usage_stats": bool}``, read as the pair."""

    def read(self, value: object, facts: Facts) -> tuple[bool, bool]:
        """Return (include usage, usage on every chunk). Raises Refused."""
        if not isinstance(value, dict):
            raise Refused('must be a map such as {"include_usage": true}')
        return (
            self._flag(value, "include_usage"),
            self._flag(value, "continuous_usage_stats"),
        )

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        flag: Schema = {"type": ["boolean", "null"]}
        return {
            "type": "object",
            "properties": {"include_usage": flag, "continuous_usage_stats": flag},
        }

    def _flag(self, options: Mapping[str, object], name: str) -> bool:
        value = options.get(name)
        if value is not None and not isinstance(value, bool):
            raise Refused(f"must have true or false as `{name}`", value)
        return value is True


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


def read_token_ids(items: list[object], facts: Facts) -> tuple[int, ...]:
    """Return ``items`` as ids of the vocabulary. Raises Refused."""
    requirement = f"must have token ids within 0..{facts.vocab_size - 1}"
    if all(type(item) is int for item in items):  # the common case, without a loop in Python
        ids: tuple[int, ...] = tuple(items)  # type: ignore[arg-type]
    else:
        wholes = [whole_number(item) for item in items]
        if None in wholes:
            raise Refused(requirement, items[wholes.index(None)])
        ids = tuple(whole for whole in wholes if whole is not None)
    for extreme in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= extreme < facts.vocab_size:
            raise Refused(requirement, extreme)
    return ids


def token_id_schema(facts: Facts) -> Schema:
    """Return the JSON Schema of one token id."""
    return {"type": "integer", "minimum": 0, "maximum": facts.vocab_size - 1}


_PROMPT_FORMS = (
    "must be a string, a list of strings, a list of token ids or a list of lists of token ids, "
    "none of the lists empty"
)


def _described(value: object) -> str:
    names = {dict: "an object", list: "an empty list", bool: "a boolean"}
    return names.get(type(value), "a number")


def _range(minimum: int, maximum: int) -> str:
    if maximum == SEED_MAX and minimum == SEED_MIN:
        return "of 64 bits with a sign"
    return f">= {minimum}" if maximum == SEED_MAX else f"within {minimum}..{maximum}"


def _ids_below(limit: int) -> str:
    """Return a regular expression for decimal numbers within 0..limit - 1, without leading 0s."""
    last = str(limit - 1)
    parts = [f"[1-9][0-9]{{0,{len(last) - 2}}}"] if len(last) > 1 else []
    for place, digit in enumerate(last):
        low = 1 if place == 0 and len(last) > 1 else 0
        if int(digit) > low:
            rest = len(last) - place - 1
            parts.append(f"{last[:place]}[{low}-{int(digit) - 1}][0-9]{{{rest}}}")
    return f"^(0|{'|'.join([*parts, last])})$"
