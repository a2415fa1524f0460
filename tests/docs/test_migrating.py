"""docs/migrating.md says of other servers' fields and routes what this one does with them."""

from __future__ import annotations

import re

import pytest
from blocks import ROOT

from ortolan_server.dialects.base import Dialect
from ortolan_server.dialects.registry import DIALECTS
from ortolan_server.settings import ServerSettings

PAGE = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
FIELDS = {
    name
    for dialect in DIALECTS
    if dialect.name != "chat"
    for field in dialect.fields
    for name in (field.name, *field.aliases)
}


def names_in_rows(right: str) -> list[str]:
    """Return the names in the left cells of rows whose right cell begins so."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    cells = [left for left, told in rows if told.startswith(right)]
    return [name for cell in cells for name in re.findall(r"`([a-z_*]+)`", cell)]


def test_fields_that_are_called_unknown_are() -> None:
    """Those with a star by their beginning."""
    names = names_in_rows("unknown: ignored and named")
    assert len(names) > 15
    for name in names:
        if name.endswith("*"):
            assert not any(field.startswith(name[:-1]) for field in FIELDS), name
        else:
            assert name not in FIELDS


def test_fields_that_are_called_the_same_are_taken() -> None:
    names = [name for name in names_in_rows("the same") if name not in ("created", "param", "code")]
    assert len(names) > 12
    assert set(names) - {"stop", "eos", "length", "finish_reason"} <= FIELDS


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d.name != "chat"], ids=lambda d: d.name)
def test_every_dialect_has_its_base_url(dialect: Dialect) -> None:
    assert f"`http://host:8000{dialect.base_path}`" in PAGE


def test_the_cap_of_an_open_completion_is_the_settings() -> None:
    assert f"`--max-output-tokens` ({ServerSettings().max_output_tokens})" in PAGE
