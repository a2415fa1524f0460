"""One archive of everything that a machine without a network needs to serve a bundle."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import msgspec

from ortolan_runtime.bundle import Bundle, open_bundle
from ortolan_runtime.errors import InvalidParameter
from ortolan_runtime.version import __version__
from ortolan_server.packing.archive import Entry, write_archive
from ortolan_server.packing.own_wheel import write_own_wheel
from ortolan_server.packing.wheels import Target, download_wheels

_SUFFIX = ".tar.gz"

Say = Callable[[str], None]


class Part(msgspec.Struct, frozen=True):
    """A file of the archive and its size in bytes."""

    name: str
    size: int


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """What was packed; ``size`` in bytes and ``sha256`` are the archive's."""

    path: Path
    size: int
    sha256: str
    wheels: tuple[Part, ...]
    bundle: tuple[Part, ...]


def pack(
    bundle: Path,
    out: Path,
    target: Target,
    *,
    own_wheel: Path | None = None,
    is_pinned: bool = True,
    say: Say,
) -> Packed:
    """Write the archive ``out`` for ``target`` and return what it holds.

    ``say`` hears a line about each thing that takes long. Raises BundleError, InvalidParameter
    and PackError.
    """
    if not out.name.endswith(_SUFFIX):
        raise InvalidParameter("OUT", f"must end with {_SUFFIX}", out.name)
    opened = open_bundle(bundle)
    with tempfile.TemporaryDirectory(prefix="ortolan-pack.") as scratch:
        wheels = Path(scratch) / "wheels"
        wheels.mkdir()
        say("gathering the wheels with pip")
        own = own_wheel or write_own_wheel(wheels)
        download_wheels(own, target, wheels, is_pinned=is_pinned)
        say(f"writing {out}")
        installer = Path(scratch) / "install"
        installer.write_text(_installer(target), encoding="utf-8")
        wheel_files, bundle_files = sorted(wheels.iterdir()), _files_of(opened)
        sha256 = write_archive(
            out,
            f"ortolan-{__version__}-{opened.manifest.name}",
            [
                Entry("install", installer, is_executable=True),
                *(Entry(f"wheels/{file.name}", file) for file in wheel_files),
                *(Entry(f"bundle/{file.name}", file) for file in bundle_files),
            ],
        )
        return Packed(
            path=out,
            size=out.stat().st_size,
            sha256=sha256,
            wheels=_parts(wheel_files),
            bundle=_parts(bundle_files),
        )


def report(packed: Packed, target: Target) -> list[str]:
    """Return lines that tell how large what is."""
    largest = sorted(packed.wheels, key=lambda part: -part.size)[:4]
    shares = ", ".join(f"{part.name.partition('-')[0]} {_mb(part.size)}" for part in largest)
    wheels, bundle = (sum(part.size for part in parts) for parts in (packed.wheels, packed.bundle))
    return [
        f"{len(packed.wheels)} wheels, {_mb(wheels)}, for Python {', '.join(target.pythons)} on "
        f"{target.machine} with glibc {target.glibc} or newer; most of it: {shares}",
        f"the bundle, {len(packed.bundle)} files, {_mb(bundle)}",
        f"in all {_mb(packed.size)}: unpack {packed.path.name} there and run `./install PREFIX`",
    ]


def _files_of(bundle: Bundle) -> list[Path]:
    names = {"bundle.json", *(record.name for record in bundle.manifest.files)}
    return [bundle.path / name for name in sorted(names)]


def _installer(target: Target) -> str:
    text = resources.files("ortolan_server.packing").joinpath("install.sh").read_text("utf-8")
    text = text.replace("@MACHINE@", target.machine).replace("@GLIBC@", target.glibc)
    return text.replace("@PYTHONS@", " ".join(target.pythons))


def _parts(files: list[Path]) -> tuple[Part, ...]:
    return tuple(Part(file.name, file.stat().st_size) for file in files)


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
