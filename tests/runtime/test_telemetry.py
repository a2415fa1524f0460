"""Nothing of a server's use is told to anybody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SERVE_A_TOKEN = """
import sys
from ortolan_runtime.engine import Engine, EngineOptions
with Engine.open(sys.argv[1], EngineOptions(threads=1)) as engine:
    engine.complete("x", max_tokens=1)
"""


def test_onnxruntime_keeps_no_identifier_and_no_events(tiny_bundle: Path, tmp_path: Path) -> None:
    """By default it writes both below the home directory, and sends the events from there."""
    variables = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment = {**variables, "HOME": str(tmp_path), "ORTOLAN_CACHE": str(tmp_path / "ours")}
    command = [sys.executable, "-c", SERVE_A_TOKEN, str(tiny_bundle)]
    subprocess.run(command, env=environment, check=True)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["ours"])
