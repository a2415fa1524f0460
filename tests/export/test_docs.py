"""docs/exporting.md names what the exporter knows, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from ortolan_export.architectures.registry import ARCHITECTURES
from ortolan_export.gguf_bytelevel import SPLITTINGS
from ortolan_export.gguf_families import FAMILIES
from ortolan_export.source import PRECISIONS
from ortolan_export.targets import TARGETS

_PAGE = (Path(__file__).parents[2] / "docs" / "exporting.md").read_text(encoding="utf-8")
# Models of text and images, whose text part is another architecture.
_WHOLES = {"gemma3", "mistral3"}


def _rows(first_heading: str) -> list[list[str]]:
    """Return the cells of the table whose first heading is ``first_heading``."""
    table = _PAGE.split(f"| {first_heading} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def _quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_every_architecture_is_listed() -> None:
    listed = {name for row in _rows("`model_type`")[2:] for name in _quoted(row[0])}
    assert listed == set(ARCHITECTURES) | _WHOLES


def test_every_family_that_gguf_files_may_have_is_marked() -> None:
    marked = {
        name
        for row in _rows("`model_type`")[2:]
        if row[3] == "yes"
        for name in _quoted(row[0]) - _WHOLES
    }
    assert marked == {family.model_type for family in FAMILIES.values()}


def test_every_device_is_listed_with_its_precisions() -> None:
    listed = {row[0]: row[1] for row in _rows("`--for`")[2:]}
    assert listed == {
        f"`{device}`": ", ".join(f"`{name}`" for name in target.precisions)
        for device, target in TARGETS.items()
    }


def test_a_device_takes_a_precision_or_says_why_not() -> None:
    for target in TARGETS.values():
        assert {*target.precisions, *target.refusals} == set(PRECISIONS)
        assert not {*target.precisions} & {*target.refusals}


def test_every_pre_tokeniser_is_listed() -> None:
    (row,) = (row for row in _rows("`tokenizer.ggml.model`")[2:] if row[0] == "`gpt2`")
    assert _quoted(row[2]) - {"tokenizer.ggml.pre"} == set(SPLITTINGS)
