"""The wheel that people install: what is not Python must be in it, too."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_every_file_of_the_page(tmp_path: Path) -> None:
    """And nothing that lies beside the packages."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*pip, str(tmp_path), str(ROOT)], check=True, timeout=300)
    [wheel] = tmp_path.glob("ortolan-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    folder = ROOT / "server" / "ortolan_server" / "pages"
    assert {f"ortolan_server/pages/{file.name}" for file in folder.iterdir()} <= names
    assert {name.split("/")[0].partition("-")[0] for name in names} == {
        "ortolan",
        "ortolan_export",
        "ortolan_runtime",
        "ortolan_server",
    }
