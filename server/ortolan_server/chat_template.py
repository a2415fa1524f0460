"""A bundle's chat template: Jinja source that turns messages into one prompt.

The template comes with the model, so it runs sandboxed and sees nothing but the messages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ortolan_runtime.errors import InvalidParameter

Message = dict[str, Any]


class ChatTemplate:
    """A compiled template. Raises InvalidParameter when its source is no template."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            # Templates are written for these settings, without which blank lines get in.
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as exc:
            raise InvalidParameter(
                "chat_template.jinja", f"must be a Jinja template ({exc})", "another text"
            ) from exc

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt whose completion is the next message.

        Raises InvalidParameter when the template refuses the messages.
        """
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._tokens,
            )
        except _Refused as exc:
            requirement = f"must suit the model's chat template ({exc})"
        except Exception as exc:  # a template is foreign code and may raise anything
            # The error's text may repeat a message, so its type has to do.
            requirement = f"must suit the model's chat template ({type(exc).__name__})"
        raise InvalidParameter("messages", requirement, f"{len(messages)} messages")


class _Generation(Extension):
    """Reads what ``{% generation %}`` encloses as if it stood alone; training needs the tag."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what is enclosed."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Refused(Exception):
    """The template itself refused the messages, in its author's words."""


def _refuse(message: str) -> NoReturn:
    raise _Refused(str(message)[:200])


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return ``value`` as JSON; the arguments are those that transformers gives to templates."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
