"""Tables that scripts write into documents."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

marks = importlib.import_module("marks")

DOCUMENT = "# A page\n\n<!-- table begins -->\nold\n<!-- table ends -->\n\nAnd more.\n"


def test_lines_go_between_the_marks_and_nothing_else_changes() -> None:
    expected = DOCUMENT.replace("old", "new\nrows")
    assert marks.between_marks(DOCUMENT, "table", ["new", "rows"]) == expected


@pytest.mark.parametrize("document", ["", DOCUMENT.partition("old")[0], "<!-- table ends -->"])
def test_a_document_without_both_marks_is_refused(document: str) -> None:
    with pytest.raises(SystemExit, match="the document must have the lines <!-- table begins"):
        marks.between_marks(document, "table", ["new"])
