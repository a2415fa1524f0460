"""How bodies are read: one table of declared fields, one error naming one field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ortolan_runtime.text import Tokenizer
from ortolan_server.dialects.base import Dialect
from ortolan_server.dialects.registry import DIALECTS
from ortolan_server.errors import ApiError
from ortolan_server.fields import Field, FieldTable, read_values
from ortolan_server.inputs import LogitBias
from ortolan_server.kinds import Facts, Flag, Integer, Number, Refused, Text
from ortolan_server.request import CompletionRequest
from scripted import byte_level_tokenizer

TABLE = FieldTable(
    dialect="test",
    fields=(
        Field(name="count", kind=Integer(minimum=0, maximum=9), default=4, doc=""),
        Field(name="heat", kind=Number(minimum=0, maximum=2), aliases=("haet",), doc=""),
        Field(name="loud", kind=Flag(), target="is_loud", default=False, doc=""),
        Field(name="word", kind=Text(), required=True, doc=""),
    ),
)


def refusal(body: object, facts: Facts, table: FieldTable = TABLE) -> ApiError:
    """Return the error of a body that must be refused."""
    with pytest.raises(ApiError) as caught:
        read_values(body, table, facts)
    return caught.value


def test_absent_fields_take_their_defaults_under_their_canonical_names(facts: Facts) -> None:
    """Null is absent."""
    values = read_values({"word": "x", "count": None}, TABLE, facts)
    assert values.by_name == {"count": 4, "heat": None, "is_loud": False, "word": "x"}
    assert values.given == {"word"}


def test_16_and_16_0_are_one_integer(facts: Facts) -> None:
    """JSON has one kind of number."""
    value = read_values({"word": "x", "count": 7.0}, TABLE, facts).by_name["count"]
    assert value == 7
    assert type(value) is int


@pytest.mark.parametrize("value", [True, "7", 7.5, float("nan"), float("inf"), 10, -1, [7], {}])
def test_what_is_no_integer_in_range_is_refused(facts: Facts, value: object) -> None:
    """One error names the field, its range, its value and the dialect."""
    error = refusal({"word": "x", "count": value}, facts)
    assert error.param == "count"
    assert error.message.startswith("`count` must be an integer within 0..9, got ")
    assert error.message.endswith("(test dialect)")


@pytest.mark.parametrize("value", [True, "1", float("nan"), float("inf"), 2.1, -0.1, 10**400])
def test_what_is_no_number_in_range_is_refused(facts: Facts, value: object) -> None:
    """An integer too large for a float is one of them."""
    assert refusal({"word": "x", "heat": value}, facts).param == "heat"


def test_two_spellings_that_differ_are_refused_together(facts: Facts) -> None:
    """Equal ones are fine."""
    assert read_values({"word": "x", "heat": 1, "haet": 1.0}, TABLE, facts).by_name["heat"] == 1
    assert refusal({"word": "x", "heat": 0, "haet": False}, facts).param == "heat"
    message = refusal({"word": "x", "heat": 1, "haet": 2}, facts).message
    assert "`heat` (1) and `haet` (2)" in message


def test_a_missing_field_is_explained_by_the_name_that_is_near(facts: Facts) -> None:
    """A typing error leaves a required field absent."""
    error = refusal({"wrod": "x"}, facts)
    assert error.param == "word"
    assert "is `wrod` meant to be it?" in error.message


def test_only_the_first_names_of_a_body_are_compared_with_a_missing_one(facts: Facts) -> None:
    """A body may hold a hundred thousand, and the event loop waits meanwhile."""
    crowd = {f"{number:07d}": 1 for number in range(64)}
    assert refusal(crowd | {"wrod": "x"}, facts).message == (
        "`word` is required and must not be null (test dialect)"
    )


def test_a_key_that_begins_with_a_token_is_not_that_token(tmp_path: Path) -> None:
    """However long it is: the whole of it must be one."""
    longest = "x" + "y" * 255
    raw = byte_level_tokenizer(longest)
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", bos_token_id=None, eos_token_ids=())
    facts = Facts(model="m", vocab_size=tokenizer.vocab_size, context_length=9, tokenizer=tokenizer)
    token = raw.token_to_id(longest)
    assert LogitBias(allows_text=True).read({longest: 1}, facts) == {token: 1.0}
    with pytest.raises(Refused):
        LogitBias(allows_text=True).read({f"{longest}y": 1}, facts)


def test_unknown_fields_are_told_of_or_refused_when_strict(facts: Facts) -> None:
    """In the order in which the body has them."""
    body = {"word": "x", "more": 1, "cuont": 2}
    assert read_values(body, TABLE, facts).ignored == ("more", "cuont")
    strict = msgspec.structs.replace(TABLE, is_strict=True)
    error = refusal({"word": "x", "cuont": 2}, facts, strict)
    assert (error.param, error.code) == ("cuont", "unknown_field")
    assert "did you mean `count`?" in error.message


def test_long_values_are_shortened_in_errors(facts: Facts) -> None:
    """Nobody's prompt comes back in an error."""
    message = refusal({"word": "x", "count": "s" * 10_000}, facts).message
    assert len(message) < 200


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_field_of_a_dialect_has_a_place_in_the_canonical_request(
    dialect: Dialect, facts: Facts
) -> None:
    """And the schema has every spelling."""
    unused = {"user", "suffix", "stream_options", "messages", "top_logprobs"}
    unused |= {"response_format", "tools", "functions"}
    names = set(CompletionRequest.__struct_fields__)
    assert {field.canonical_name for field in dialect.fields} <= names | unused
    table = dialect.table(is_strict=False)
    assert list(table.schema(facts)["properties"]) == table.names()
    assert len(set(table.names())) == len(table.names())


def made(dialect: Dialect, facts: Facts, **fields: Any) -> CompletionRequest:
    """Return the canonical request of a body."""
    body = {"model": "m", "prompt": "x", **fields}
    values = read_values(body, dialect.table(is_strict=False), facts)
    return dialect.make_request(values, dialect, facts)


def by_name(name: str) -> Dialect:
    """Return the dialect of that name."""
    return next(dialect for dialect in DIALECTS if dialect.name == name)


def test_defaults_differ_between_dialects_as_their_documents_say(facts: Facts) -> None:
    """The tables of docs/api.md, in brief."""
    openai, tokensmind, second, together = (
        made(by_name(name), facts) for name in ("openai", "tokensmind", "second", "together")
    )
    assert (openai.max_tokens, together.max_tokens) == (16, None)
    assert (openai.seed, second.seed) == (None, 689760)
    assert [openai.include_stop, tokensmind.include_stop] == [False, True]
    assert openai.best_of == openai.n == 1


def test_stream_options_need_a_stream_only_where_the_document_says_so(facts: Facts) -> None:
    """`second` and `together` ignore them."""
    options = {"stream_options": {"include_usage": True}}
    with pytest.raises(ApiError, match="`stream_options` needs `stream` to be true"):
        made(by_name("openai"), facts, **options)
    for name in ("second", "together"):
        assert made(by_name(name), facts, **options).stream is False
