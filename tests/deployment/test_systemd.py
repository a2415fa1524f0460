"""The systemd unit, as systemd-analyze judges it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ortolan_server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
UNIT = (ROOT / "deploy" / "ortolan.service").read_text(encoding="utf-8")
# In tenths, as --threshold wants it. Below 2 systemd says OK; a new exposure must be meant.
MOST_EXPOSED = 12

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Give the unit with a program that exists here: systemd looks for it."""
    path = tmp_path / "ortolan.service"
    path.write_text(UNIT.replace("/opt/ortolan/bin/ortolan serve", f"{sys.executable} serve"))
    return path


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_unit(unit: Path) -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    # It looks at every unit of the machine that ours is ordered after.
    lines = [line for line in done.stderr.splitlines() if "ortolan" in line]
    assert lines == []
    assert done.returncode == 0, done.stderr


@needs_systemd
def test_the_unit_is_no_more_exposed_than_its_page_says(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
    done = subprocess.run(
        [*command, f"--threshold={MOST_EXPOSED}", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout[-300:]
    level = re.search(r"exposure level for ortolan\.service: ([\d.]+)", done.stdout)
    assert level is not None
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert f"an exposure of {level[1]}" in page


def test_there_is_time_to_drain_before_systemd_kills() -> None:
    """The grace, the last words and uvicorn's own end."""
    stop = re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) > ServerSettings().grace_s + 2 + 2


@needs_systemd
def test_a_template_for_several_processes_is_made_of_the_unit(tmp_path: Path) -> None:
    """By the command of docs/scaling.md, run as it stands but for the paths."""
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    command = re.search(r"^sed .* > /etc/systemd/system/ortolan@\.service$", page, re.MULTILINE)
    assert command is not None
    template = tmp_path / "ortolan@.service"
    here = command[0].replace("/etc/systemd/system/ortolan@.service", str(template))
    subprocess.run(["sh", "-c", here], cwd=ROOT, check=True)
    text = template.read_text()
    assert "--port %i " in text
    assert "usage-%i.jsonl" in text
    instance = tmp_path / "ortolan@8001.service"
    instance.write_text(text.replace("/opt/ortolan/bin/ortolan serve", f"{sys.executable} serve"))
    command_line = ["systemd-analyze", "verify", "--man=no", str(instance)]
    done = subprocess.run(command_line, capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if "ortolan" in line] == []
