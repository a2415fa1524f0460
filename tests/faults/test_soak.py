"""The soak, for seconds: that it works and finds nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "scripts" / "soak"


def test_a_few_seconds_of_mixed_load_leave_nothing_behind(babbling_bundle: Path) -> None:
    """No 5xx, no stream without an end, every token accounted for."""
    command = [sys.executable, str(SOAK), str(babbling_bundle), "--minutes", "0.05"]
    command += ["--clients", "6", "--streams", "4", "--health-ms", "3000"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 faults" in result.stdout
