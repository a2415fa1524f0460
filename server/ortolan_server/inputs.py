"""The larger kinds of value: prompts, messages, token ids, biases and options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType
from typing import Any

import msgspec

from ortolan_server.kinds import Facts, Refused, Schema, finite_number, whole_number

_MAX_KEY_CHARACTERS = 256
_MAX_BIASES = 4096

_PROMPT_FORMS = (
    "must be a string, a list of strings, a list of token ids or a list of lists of token ids, "
    "none of the lists empty"
)


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
        if len(value) > _MAX_BIASES:
            raise Refused(f"must have at most {_MAX_BIASES} entries", words=f"{len(value)} entries")
        return {self._key(key, facts): self._bias(bias) for key, bias in value.items()}

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        bias: Schema = {"type": "number"}
        if self.bound is not None:
            bias |= {"minimum": -self.bound, "maximum": self.bound}
        schema: Schema = {
            "type": "object",
            "additionalProperties": bias,
            "maxProperties": _MAX_BIASES,
        }
        if not self.allows_text:
            schema["propertyNames"] = {"pattern": _ids_below(facts.vocab_size)}
        return schema

    def _key(self, key: str, facts: Facts) -> int:
        if len(key) <= 19 and key.isascii() and key.isdigit() and key == str(int(key)):
            if int(key) < facts.vocab_size:
                return int(key)
        if self.allows_text and len(key) <= _MAX_KEY_CHARACTERS:
            ids = facts.tokenizer.encode(key, add_special_tokens=False)
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
            raise Refused(_PROMPT_FORMS, words=_described(value))
        kinds = set(map(type, value))  # a loop in Python would hold up the others
        if kinds == {str}:
            return tuple(value)
        if kinds == {list}:
            return tuple(self._ids(item, facts) for item in value)
        if kinds & {str, list, dict, NoneType}:
            raise Refused(_PROMPT_FORMS, words="a list of mixed items")
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
            raise Refused("must hold no empty list of token ids", words="[]")
        return read_token_ids(ids, facts)


class Messages(msgspec.Struct, frozen=True):
    """A conversation: a list of messages with a role and text, or parts of text, as content."""

    def read(self, value: object, facts: Facts) -> list[dict[str, Any]]:
        """Return the messages with their content as one string each. Raises Refused."""
        if not isinstance(value, list) or not value:
            raise Refused("must be a list of at least one message", words=_described(value))
        return [self._message(message) for message in value]

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        part: Schema = {
            "type": "object",
            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            "required": ["type", "text"],
        }
        content = {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]}
        message = {
            "type": "object",
            "properties": {"role": {"type": "string", "minLength": 1}, "content": content},
            "required": ["role", "content"],
        }
        return {"type": "array", "items": message, "minItems": 1}

    def _message(self, message: object) -> dict[str, Any]:
        if not isinstance(message, dict):
            raise Refused("must be a list of messages", words=_described(message))
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise Refused("must have a `role` in each message", words=_described(role))
        return {**message, "content": self._content(message.get("content"))}

    def _content(self, content: object) -> str:
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise Refused("must have text as `content` of each message", words=_described(content))
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if not all(isinstance(text, str) for text in texts):
            raise Refused("must have parts of type text alone as `content`", words="another part")
        return "".join(text for text in texts if text is not None)


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


class TextFormat(msgspec.Struct, frozen=True):
    """A response format, of which text is the only one."""

    def read(self, value: object, facts: Facts) -> None:
        """Return nothing. Raises Refused."""
        if not isinstance(value, dict) or value.get("type") != "text":
            raise Refused('must be {"type": "text"}')

    def schema(self, facts: Facts) -> Schema:
        """Return the JSON Schema."""
        return {
            "type": "object",
            "properties": {"type": {"const": "text"}},
            "required": ["type"],
        }


def read_token_ids(items: list[object], facts: Facts) -> tuple[int, ...]:
    """Return ``items`` as ids of the vocabulary. Raises Refused."""
    if set(map(type, items)) == {int}:  # the common case, without a loop in Python
        ids: tuple[int, ...] = tuple(items)  # type: ignore[arg-type]
    else:
        wholes = [whole_number(item) for item in items]
        if None in wholes:
            raise _no_token_id(items[wholes.index(None)], facts)
        ids = tuple(whole for whole in wholes if whole is not None)
    if ids and min(ids) < 0:
        raise _no_token_id(min(ids), facts)
    if ids and max(ids) >= facts.vocab_size:
        raise _no_token_id(max(ids), facts)
    return ids


def _no_token_id(value: object, facts: Facts) -> Refused:
    return Refused(f"must have token ids within 0..{facts.vocab_size - 1}", value)


def token_id_schema(facts: Facts) -> Schema:
    """Return the JSON Schema of one token id."""
    return {"type": "integer", "minimum": 0, "maximum": facts.vocab_size - 1}


def _described(value: object) -> str:
    names = {dict: "an object", bool: "a boolean", str: "a string", NoneType: "null"}
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return names.get(type(value), "a number")


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
