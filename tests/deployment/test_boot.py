"""The unit under a systemd that has booted: a small Debian in systemd-nspawn, without a network."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
PROBE = Path(__file__).with_name("boot_probe.sh")
PROBE_UNIT = """\
[Unit]
After=ortolan.service
Wants=ortolan.service
[Service]
Type=oneshot
ExecStart=/bin/sh /probe.sh
ExecStopPost=/bin/systemctl --no-block poweroff
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture(scope="module")
def result(debian: Path, unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Give the lines that the probe wrote, after the commands of docs/deployment.md."""
    if shutil.which("systemd-nspawn") is None:
        pytest.skip("systemd-nspawn is not installed")
    root = tmp_path_factory.mktemp("boot") / "root"
    root.mkdir()
    subprocess.run(["tar", "xf", str(debian), "-C", str(root)], check=True)
    shutil.copytree(unpacked, root / "packed")
    install = ["chroot", str(root), "/packed/install", "/opt/ortolan"]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    (root / "srv" / "ortolan").mkdir()
    (root / "opt" / "ortolan" / "bundle").rename(root / "srv" / "ortolan" / "bundle")
    shutil.copy(DEPLOY / "ortolan.sysusers", root / "usr/lib/sysusers.d/ortolan.conf")
    units = root / "etc" / "systemd" / "system"
    shutil.copy(DEPLOY / "ortolan.service", units)
    (units / "probe.service").write_text(PROBE_UNIT)
    shutil.copy(PROBE, root / "probe.sh")
    enable = ["systemctl", f"--root={root}", "enable", "ortolan", "probe"]
    subprocess.run(enable, check=True, capture_output=True)
    boot = ["systemd-nspawn", f"--directory={root}", "--boot", "--private-network"]
    boot += ["--register=no", "--keep-unit", "--console=pipe"]
    subprocess.run(boot, stdin=subprocess.DEVNULL, capture_output=True, timeout=180)
    written = root / "result"
    if not written.exists():
        pytest.skip("systemd-nspawn cannot boot here")
    return written.read_text().splitlines()


def test_the_unit_starts_with_all_that_is_taken_from_it(result: list[str]) -> None:
    """No memory that is both written and run, a filter of system calls, no capabilities."""
    assert "state active" in result
    assert "without-keys 200" in result
    assert "NoNewPrivs:\t1" in result
    assert "Seccomp:\t2" in result
    assert "CapEff:\t0000000000000000" in result


def test_a_killed_server_is_started_again(result: list[str]) -> None:
    assert "after-a-kill 200" in result


def test_a_key_that_is_added_shuts_the_door_at_once(result: list[str]) -> None:
    """By the command of the page, as the service's user."""
    assert "without-a-key 401" in result
    assert "with-a-key 200" in result


def test_stopping_it_is_a_success(result: list[str]) -> None:
    assert "result success 0" in result
    assert {"keys.json", "usage.jsonl"} <= set(result)
    assert result[-1] == "over"
