"""The native exporter needs neither torch nor transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

_EXPORT = """
import sys
for package in ("torch", "transformers", "optimum"):
    sys.modules[package] = None  # as if it were not installed
from ortolan_server.cli import main
sys.exit(main(["export", *sys.argv[1:]]))
"""


def test_a_checkpoint_is_exported_where_torch_is_absent(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _EXPORT, make_checkpoint("llama"), tmp_path / "out"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_asking_for_help_loads_no_exporter() -> None:
    code = (
        "import sys\n"
        "from ortolan_server.cli import parser\n"
        "from ortolan_server.commands.registry import COMMANDS\n"
        "parser(*(c for c in COMMANDS if 'ortolan_export' in c.module))\n"
        "heavy = {'onnx_ir', 'onnxruntime', 'gguf', 'tqdm'}\n"
        "sys.exit(len(heavy & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
