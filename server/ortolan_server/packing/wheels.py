"""Gathers the wheels that a machine needs to serve, with pip, for that machine and no other."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Literal, get_args

import msgspec

from ortolan_runtime.errors import InvalidParameter
from ortolan_server.packing.errors import PackError

Machine = Literal["x86_64", "aarch64"]

_PYTHON = re.compile(r"3\.(\d+)")
_GLIBC = re.compile(r"2\.(\d+)")
_OLDEST_PYTHON = 11
# The first glibc of manylinux with numbers in its name; older ones have names by year.
_OLDEST_GLIBC = 17


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that will serve. Raises InvalidParameter."""

    machine: Machine
    glibc: str
    pythons: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.machine not in get_args(Machine):
            raise InvalidParameter("machine", "must be x86_64 or aarch64", self.machine)
        glibc = _GLIBC.fullmatch(self.glibc)
        if glibc is None or int(glibc[1]) < _OLDEST_GLIBC:
            raise InvalidParameter("glibc", f"must be 2.{_OLDEST_GLIBC} or newer", self.glibc)
        for python in self.pythons:
            match = _PYTHON.fullmatch(python)
            if match is None or int(match[1]) < _OLDEST_PYTHON:
                raise InvalidParameter("python", f"must be 3.{_OLDEST_PYTHON} or newer", python)

    def platforms(self) -> list[str]:
        """Return the tags of wheels that run there, the newest glibc first."""
        newest = int(self.glibc.partition(".")[2])
        numbered = [
            f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)
        ]
        old = [f"manylinux2014_{self.machine}"]
        if self.machine == "x86_64":
            old += ["manylinux_2_12_x86_64", "manylinux2010_x86_64"]
            old += ["manylinux_2_5_x86_64", "manylinux1_x86_64"]
        return [*numbered, *old]


def download_wheels(own_wheel: Path, target: Target, folder: Path, *, is_pinned: bool) -> None:
    """Write ``own_wheel``, all that it needs on the CPU, and pip into ``folder``.

    With ``is_pinned`` the versions are those that are installed here. Raises PackError.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        if is_pinned:
            constraints.write("".join(f"{line}\n" for line in installed_versions()))
            constraints.flush()
        for python in target.pythons:
            _download(own_wheel, target, python, folder, Path(constraints.name))


def installed_versions() -> list[str]:
    """Return ``name==version`` of every distribution here but Ortolan."""
    found = {
        f"{distribution.name}=={distribution.version}"
        for distribution in metadata.distributions()
        if distribution.name and distribution.name.lower() != "ortolan"
    }
    return sorted(found)


def _download(
    own_wheel: Path, target: Target, python: str, folder: Path, constraints: Path
) -> None:
    options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    for abi in (f"cp{python.replace('.', '')}", "abi3", "none"):
        options += ["--abi", abi]
    for platform in target.platforms():
        options += ["--platform", platform]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, *options, "--constraint", str(constraints), "--dest", str(folder)]
        + [f"{own_wheel}[cpu]", "pip"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        last = errors[-1].removeprefix("ERROR: ") if errors else "it said nothing"
        raise PackError(
            f"pip found no wheels for Python {python} on {target.machine} with glibc "
            f"{target.glibc}: {last}; --newest takes other versions than those installed here"
        )
