"""Lets the exporter's tests import what they share, and gives them sources to change."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from parity import Reference

from foreign_graphs import write_export


@pytest.fixture
def checkpoint(make_checkpoint: Any, tmp_path: Path) -> Path:
    """Give a Llama that the test may change or damage."""
    return Path(shutil.copytree(make_checkpoint("llama"), tmp_path / "model"))


@pytest.fixture
def exported(make_checkpoint: Any, tmp_path: Path) -> Callable[..., Path]:
    """Give a function that writes a tiny Llama as other exporters do."""

    def write(**options: Any) -> Path:
        return write_export(tmp_path / "export", make_checkpoint("llama"), **options)

    return write


@pytest.fixture(scope="session")
def reference_of() -> Callable[[Path], Reference]:
    """Give a function that runs a checkpoint in transformers, each once."""
    known: dict[Path, Reference] = {}

    def reference(checkpoint: Path) -> Reference:
        if checkpoint not in known:
            known[checkpoint] = Reference(checkpoint)
        return known[checkpoint]

    return reference
