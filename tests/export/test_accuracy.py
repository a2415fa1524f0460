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
_FOUR = "int4:level=0,block=64"
_DOCUMENT = "# Exporting\n\n<!-- accuracy begins -->\nold\n<!-- accuracy ends -->\n\nAnd more.\n"


@pytest.mark.slow
def test_the_table_goes_between_the_marks_of_a_document(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    source = make_checkpoint("llama", max_position_embeddings=512)
    text, document = tmp_path / "text", tmp_path / "document.md"
    text.write_text("A bird in the hand is worth two in the bush. " * 30)
    document.write_text(_DOCUMENT)
    arguments = ["--anew", "--tokens", "1024", "--precisions", "int8", _FOUR, "--text", text]
    command = [sys.executable, _SCRIPT, source, *arguments, "--write", document]
    subprocess.run(command, check=True, capture_output=True)
    before, _, after = document.read_text().partition("<!-- accuracy begins -->\n")
    written, _, rest = after.partition("\n<!-- accuracy ends -->")
    assert (before, rest) == ("# Exporting\n\n", "\n\nAnd more.\n")
    assert "1022 tokens in windows of 512" in written
    rows = {
        row[0]: row[1:] for row in re.findall(r"^\| (\S+) \| ([\d.]+) \| ([\d.]+)", written, re.M)
    }
    assert set(rows) == {"fp32", "int8", _FOUR}
    assert rows["fp32"][1] == "1.0000"
    assert float(rows["int8"][0]) > math.exp(2)  # random weights know no English
    assert 0.8 < float(rows["int8"][1]) < 1.2


@pytest.mark.parametrize("name", ["int4:0", "int4:block=48", "int4:"])
def test_an_option_that_no_precision_has_is_named(name: str, tmp_path: Path) -> None:
    command = [sys.executable, _SCRIPT, tmp_path, "--precisions", "int8", name]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith(f"--precisions {name}: ")
    assert "must be one of level=0, level=4, block=32, block=64, block=128" in run.stderr
