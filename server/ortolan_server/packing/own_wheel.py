"""The wheel of the Ortolan that runs: built from its checkout, or from what pip installed."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from ortolan_server.packing.errors import PackError

# What pip adds to a distribution's folder while it installs.
_INSTALLERS_OWN = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold


def write_own_wheel(folder: Path) -> Path:
    """Write the wheel into ``folder`` and return its path. Raises PackError."""
    checkout = Path(__file__).parents[3]
    if (checkout / "pyproject.toml").exists():
        return _built(checkout, folder)
    try:
        return _put_together(metadata.distribution("ortolan"), folder)
    except metadata.PackageNotFoundError as exc:
        raise PackError("ortolan is not installed here; name its wheel with --wheel") from exc


def _built(checkout: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--no-deps", "--wheel-dir", str(folder), str(checkout)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise PackError(f"pip could not build the wheel of {checkout}: {last}; see --wheel")
    return next(folder.glob("ortolan-*.whl"))


def _put_together(installed: metadata.Distribution, folder: Path) -> Path:
    """Write the files of an installed distribution as the wheel that they came from."""
    wheel = folder / f"ortolan-{installed.version}-py3-none-any.whl"
    record = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(installed.files or (), key=str):
            is_outside = ".." in file.parts or "__pycache__" in file.parts
            if is_outside or file.name in _INSTALLERS_OWN:
                continue
            data = file.read_binary()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{file},sha256={digest},{len(data)}\n")
            archive.writestr(_entry(str(file)), data)
        name = f"ortolan-{installed.version}.dist-info/RECORD"
        archive.writestr(_entry(name), "".join([*record, f"{name},,\n"]))
    return wheel


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry
