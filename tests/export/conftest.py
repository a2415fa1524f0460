"""Lets the exporter's tests import what they share: the families' cases and the comparison."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from parity import Reference


@pytest.fixture(scope="session")
def reference_of() -> Callable[[Path], Reference]:
    """Give a function that runs a checkpoint in transformers, each once."""
    known: dict[Path, Reference] = {}

    def reference(checkpoint: Path) -> Reference:
        if checkpoint not in known:
            known[checkpoint] = Reference(checkpoint)
        return known[checkpoint]

    return reference
