"""scripts/accuracy measures what it says, on any model and text."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).parents[2] / "scripts" / "accuracy"
_DOCUMENT = "# Exporting\n\n<!-- accuracy begins -->\nold\n<!-- accuracy ends -->\n\nAnd more.\n"


@pytest.mark.slow
def test_the_table_goes_between_the_marks_of_a_document(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    source = make_checkpoint("llama", max_position_embeddings=512)
    text, document = tmp_path / "text", tmp_path / "document.md"
    text.write_text("A bird in the hand is worth two in the bush. " * 30)
    document.write_text(_DOCUMENT)
    arguments = ["--tokens", "1024", "--precisions", "int8", "int4:0", "--text", text]
    command = [sys.executable, _SCRIPT, source, *arguments, "--write", document]
    subprocess.run(command, check=True, capture_output=True)
    before, _, after = document.read_text().partition("<!-- accuracy begins -->\n")
    written, _, rest = after.partition("\n<!-- accuracy ends -->")
    assert (before, rest) == ("# Exporting\n\n", "\n\nAnd more.\n")
    assert "1022 tokens in windows of 512" in written
    rows = {
        row[0]: row[1:] for row in re.findall(r"^\| (\S+) \| ([\d.]+) \| ([\d.]+)", written, re.M)
    }
    assert set(rows) == {"fp32", "int8", "int4:0"}
    assert rows["fp32"][1] == "1.0000"
    assert float(rows["int8"][0]) > math.exp(2)  # random weights know no English
    assert 0.8 < float(rows["int8"][1]) < 1.2
