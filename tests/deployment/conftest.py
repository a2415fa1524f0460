"""Tools of the deployment tests: a model that talks for seconds, an archive, a small Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ortolan_runtime.bundle import cache_directory


@pytest.fixture(scope="session")
def unpacked(glass_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of an archive for this machine, unpacked."""
    folder = tmp_path_factory.mktemp("packed")
    archive = folder / "glass.tar.gz"
    command = [sys.executable, "-m", "ortolan_server", "pack", str(glass_bundle), str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert " wheels, " in done.stderr
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (root,) = (path for path in folder.iterdir() if path.is_dir())
    return root


@pytest.fixture(scope="session")
def debian() -> Path:
    """Give a tar of a small Debian whose Python is of this version; made once, with mmdebstrap."""
    suites = {(3, 11): "bookworm", (3, 13): "trixie"}
    suite = suites.get(sys.version_info[:2])
    if suite is None or shutil.which("mmdebstrap") is None or os.geteuid() != 0:
        pytest.skip("mmdebstrap, root, and a Python that a Debian has are needed")
    archive = cache_directory(os.environ) / "tests" / f"{suite}.tar"
    if not archive.exists():
        temporary = archive.with_suffix(".new.tar")
        command = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            "--include=python3,systemd-sysv,dbus",
        ]
        subprocess.run([*command, suite, str(temporary)], check=True, timeout=900)
        temporary.rename(archive)
    return archive
