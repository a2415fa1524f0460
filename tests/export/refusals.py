"""What tests of refusals share: sources to damage, and the one line that a command ends with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from safetensors.numpy import load_file, save_file

from ortolan_server.cli import main


def configure(checkpoint: Path, **fields: Any) -> None:
    file = checkpoint / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def rewrite_tensors(checkpoint: Path, changes: dict[str, Any]) -> None:
    """Put all tensors into one file, with those of ``changes`` added, replaced or (None) gone."""
    tensors: dict[str, Any] = {}
    for shard in checkpoint.glob("*.safetensors"):
        tensors |= load_file(shard)
        shard.unlink()
    (checkpoint / "model.safetensors.index.json").unlink(missing_ok=True)
    tensors = {name: array for name, array in {**tensors, **changes}.items() if array is not None}
    save_file(tensors, checkpoint / "model.safetensors")


def refusal(
    source: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
    *options: str,
    command: str = "export",
) -> str:
    """Return the one line that a command ends with, having checked all that must hold of it."""
    before = sorted(out.parent.iterdir())
    capsys.readouterr()  # what making the source has said
    assert main([command, str(source), str(out), *options]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("ortolan: error: ")
    assert printed.err.count("\n") == 1
    assert sorted(out.parent.iterdir()) == before
    return printed.err


def resave(source: Path, change: Callable[[ir.Model], None]) -> None:
    """Change the graph of an export."""
    model = ir.load(source / "model.onnx")
    change(model)
    ir.save(model, source / "model.onnx")
