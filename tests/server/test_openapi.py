"""The published documents: made of the declarations, complete, and fit for tools."""

from __future__ import annotations

import msgspec
import pytest

from ortolan_server import openapi
from ortolan_server.dialects.base import Dialect
from ortolan_server.dialects.registry import DIALECTS
from ortolan_server.kinds import Facts


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_document_has_every_field_and_every_status(dialect: Dialect, facts: Facts) -> None:
    """Second's statuses are its own."""
    document = openapi.document([dialect], facts, title="t", is_strict=False, has_key=True)
    assert list(document["paths"]) == [dialect.path]
    operation = document["paths"][dialect.path]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert list(schema["properties"]) == dialect.table(is_strict=False).names()
    assert schema["additionalProperties"] is True
    statuses = set(operation["responses"])
    assert {"200", "400", "401", "429", "500"} <= statuses
    assert ("404" in statuses) == (dialect.name != "second")
    assert document["security"] == [{"bearer": []}]


def test_a_strict_server_publishes_what_it_holds_to(facts: Facts) -> None:
    """Narrower ranges, no more fields."""
    openai = DIALECTS[0]
    paths = openapi.document([openai], facts, title="t", is_strict=True, has_key=False)["paths"]
    schema = paths[openai.path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["logprobs"]["maximum"] == 5


def test_optional_fields_may_be_null_and_required_ones_may_not(facts: Facts) -> None:
    """As the validator has it."""
    table = DIALECTS[0].table(is_strict=False)
    properties = table.schema(facts)["properties"]
    assert properties["temperature"]["type"] == ["number", "null"]
    assert {"type": "null"} in properties["stop"]["anyOf"]
    assert {"type": "null"} not in properties["prompt"]["anyOf"]
    assert properties["model"]["type"] == "string"


def test_what_an_admin_may_do_is_described(facts: Facts) -> None:
    """With the conflict while another bundle is being loaded, and a key always."""
    operation = openapi.admin_paths(facts)["/admin/models"]["post"]
    assert {"200", "400", "401", "404", "409"} <= set(operation["responses"])
    assert operation["security"] == [{"bearer": []}]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["bundle"]
    assert not body["additionalProperties"]


def test_one_document_describes_every_model(facts: Facts) -> None:
    """By the names that may be asked for."""
    both = msgspec.structs.replace(facts, others=("n",))
    made = openapi.document(DIALECTS[:1], both, title="t", is_strict=False, has_key=False)
    operation = made["paths"][DIALECTS[0].path]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["model"]["enum"] == ["m", "n"]
    assert "403" in operation["responses"]


def test_a_field_of_two_names_says_which_is_the_first(facts: Facts) -> None:
    """So that a form made from the document has it once."""
    properties = DIALECTS[0].table(is_strict=False).schema(facts)["properties"]
    assert properties["tempature"] == properties["temperature"] | {"x-alias-of": "temperature"}
    assert "x-alias-of" not in properties["temperature"]
