"""JSON Schemas of replies and errors, for the OpenAPI documents."""

from __future__ import annotations

from ortolan_server.kinds import Schema

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_LOGPROB: Schema = {"type": ["number", "null"], "maximum": 0}
_FIXED_USAGE = {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT}


def completion_schema(usage: Schema | None = None) -> Schema:
    """Return the schema of a `text_completion` object."""
    choice = _object(
        {
            "index": _COUNT,
            "text": _TEXT,
            "logprobs": _or_null(_logprobs_schema()),
            "finish_reason": {"enum": ["stop", "length", "content_filter"]},
        }
    )
    return _reply("text_completion", choice, usage or usage_schema())


def together_schema() -> Schema:
    """Return the schema of a `text.completion` object."""
    logprobs = _or_null(_logprobs_schema({"token_ids": _array(_COUNT)}))
    choice = _object(
        {
            "text": _TEXT,
            "index": _COUNT,
            "seed": {"type": "integer"},
            "finish_reason": {"enum": ["stop", "eos", "length"]},
            "logprobs": logprobs,
        }
    )
    return _object(
        {
            "id": _TEXT,
            "object": {"const": "text.completion"},
            "created": _COUNT,
            "model": _TEXT,
            "choices": _array(choice),
            "prompt": _array(_object({"text": _TEXT, "logprobs": logprobs})),
            "usage": _object(_FIXED_USAGE),
        }
    )


def chat_schema() -> Schema:
    """Return the schema of a `chat.completion` object."""
    token = {"token": _TEXT, "logprob": {"type": "number", "maximum": 0}}
    raw = {"bytes": {"type": ["array", "null"], "items": _COUNT}}
    entry = _object({**token, **raw, "top_logprobs": _array(_object({**token, **raw}))})
    message = _object({"role": {"const": "assistant"}, "content": _TEXT})
    choice = _object(
        {
            "index": _COUNT,
            "message": message,
            "logprobs": _or_null(_object({"content": _array(entry)})),
            "finish_reason": {"enum": ["stop", "length", "content_filter"]},
        }
    )
    return _reply("chat.completion", choice, usage_schema())


def usage_schema() -> Schema:
    """Return the schema of a usage with the prefix cache's share."""
    details = _object({"cached_tokens": _COUNT})
    return _object({**_FIXED_USAGE, "prompt_tokens_details": details})


def detailed_usage_schema() -> Schema:
    """Return the schema of a usage by kinds of token."""
    prompt = _counts("cached_tokens", "text_tokens", "audio_tokens", "image_tokens")
    completion = _counts("text_tokens", "audio_tokens", "reasoning_tokens")
    details = {"prompt_tokens_details": prompt, "completion_tokens_details": completion}
    return _object({**_FIXED_USAGE, **details})


def error_schema(*, omits_nulls: bool) -> Schema:
    """Return the schema of an error."""
    optional = {"param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}
    error = _object({"message": _TEXT, "type": _TEXT, **optional})
    if omits_nulls:
        error["required"] = ["message", "type"]
    return _object({"error": error})


def _reply(name: str, choice: Schema, usage: Schema) -> Schema:
    return _object(
        {
            "id": _TEXT,
            "object": {"const": name},
            "created": _COUNT,
            "model": _TEXT,
            "system_fingerprint": _TEXT,
            "choices": _array(choice),
            "usage": usage,
        }
    )


def _logprobs_schema(first: Schema | None = None) -> Schema:
    tops = {"type": ["object", "null"], "additionalProperties": {"type": "number", "maximum": 0}}
    return _object(
        {
            **(first or {}),
            "tokens": _array(_TEXT),
            "token_logprobs": _array(_LOGPROB),
            "top_logprobs": _array(tops),
            "text_offset": _array(_COUNT),
        }
    )


def _counts(*names: str) -> Schema:
    return _object(dict.fromkeys(names, _COUNT))


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}
