"""docs/api.md says what the declarations say: its tables are made from them.

`UPDATE_DOCS=1` writes the tables anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from ortolan_server.dialects.base import Dialect
from ortolan_server.dialects.common import EXTENSIONS
from ortolan_server.dialects.registry import DIALECTS
from ortolan_server.fields import Field
from ortolan_server.inputs import LogitBias, Messages, Prompts, StreamOptions, TextFormat, TokenIds
from ortolan_server.kinds import Flag, Integer, Kind, ModelName, Number, Text, Texts, Unsupported

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
BLOCK = re.compile(r"(<!-- ([a-z:]+) -->\n).*?(<!-- end -->)", re.DOTALL)
BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
OPENAI = BY_NAME["openai"]
INT64_MAX = 2**63 - 1


def test_the_tables_of_the_page_are_those_of_the_declarations() -> None:
    """So that the page cannot drift."""
    text = PAGE.read_text()
    made = BLOCK.sub(lambda match: f"{match[1]}{table(match[2])}{match[3]}", text)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(made)
        return
    assert text == made, "run the tests with UPDATE_DOCS=1"


@pytest.mark.parametrize(
    "code",
    re.findall(
        r'code="(\w+)"',
        Path(__file__).parents[2].joinpath("server/ortolan_server/errors.py").read_text(),
    ),
)
def test_every_code_of_an_error_is_on_the_page(code: str) -> None:
    """As a client may have to tell them apart."""
    assert f"| {code} |" in PAGE.read_text()


def table(block: str) -> str:
    """Return the lines of a block of the page."""
    kind, _, name = block.partition(":")
    if kind == "routes":
        return routes()
    if kind == "extensions":
        return rows(EXTENSIONS)
    dialect = BY_NAME[name]
    if kind == "differences":
        same = {field.name: field for field in OPENAI.fields}
        return rows(field for field in dialect.fields if same.get(field.name) != field)
    extensions = {field.name for field in EXTENSIONS}
    return rows(field for field in dialect.fields if field.name not in extensions)


def routes() -> str:
    """Return the table of dialects."""
    lines = ["| dialect | route | a client's base URL |", "|---|---|---|"]
    lines += [f"| `{d.name}` | `POST {d.path}` | `http://host{d.base_path}` |" for d in DIALECTS]
    return "\n".join(lines) + "\n"


def rows(fields: Iterable[Field]) -> str:
    """Return the table of some fields."""
    lines = ["| field | values | default | strict | |", "|---|---|---|---|---|"]
    for field in fields:
        names = ", ".join(f"`{name}`" for name in (field.name, *field.aliases))
        strict = words(field.strict) if field.strict is not None else ""
        lines.append(
            f"| {names} | {words(field.kind)} | {default(field)} | {strict} | {field.doc} |"
        )
    return "\n".join(lines) + "\n"


def default(field: Field) -> str:
    """Return a field's default in words."""
    if field.required:
        return "required"
    if field.default is None or field.default in ((), {}, ""):
        return ""
    if isinstance(field.default, float):
        return f"{field.default:g}"
    return msgspec.json.encode(field.default).decode()


def words(kind: Kind) -> str:
    """Return what a kind takes, in words."""
    match kind:
        case Integer():
            return integer_words(kind)
        case Number():
            low = "<" if kind.is_open else "≤"
            return f"{kind.minimum:g} {low} x ≤ {kind.maximum:g}"
        case Texts():
            one = "string or " if kind.allows_single else ""
            return f"{one}list of ≤ {kind.maximum} strings"
        case LogitBias():
            bound = "a number" if kind.bound is None else f"−{kind.bound:g}..{kind.bound:g}"
            key = "id or text of one token" if kind.allows_text else "id"
            return f"map of {key} to {bound}"
        case _:
            return PLAIN_WORDS[type(kind)]


PLAIN_WORDS = {
    Flag: "true or false",
    Text: "string",
    ModelName: "string",
    Unsupported: "null",
    Prompts: "four forms",
    Messages: "list of `{role, content}`",
    StreamOptions: "map of two flags",
    TextFormat: '`{"type": "text"}`',
    TokenIds: "list of ids",
}


def integer_words(kind: Integer) -> str:
    """Return an integer's range in words."""
    if kind.maximum == INT64_MAX:
        least = "any of 64 bits" if kind.minimum < -1 else f"integer ≥ {kind.minimum}"
        return least + "".join(f", {value}" for value in kind.off)
    return f"integer {kind.minimum}..{kind.maximum}"


def test_every_dialect_has_its_section() -> None:
    """None is forgotten on the page."""
    text = PAGE.read_text()

    def is_there(dialect: Dialect) -> bool:
        return f"<!-- fields:{dialect.name} -->" in text or f"### {dialect.name}\n" in text

    assert all(is_there(dialect) for dialect in DIALECTS)
