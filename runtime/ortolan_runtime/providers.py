"""The execution providers: what each device needs, and the session options that go with it.

A provider that was asked for and is not there is an error that names what to install; onnxruntime
itself would fall back to the CPU in silence.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import onnxruntime as ort

from ortolan_runtime.bundle import Device, Manifest
from ortolan_runtime.cgroup import core_quota, own_groups
from ortolan_runtime.errors import BundleError, ProviderError

_PROVIDERS: dict[Device, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
# onnxruntime-gpu 1.31 is built for CUDA 13 and TensorRT 10.
_CUDA = (
    "install `ortolan[gpu]` in place of `ortolan[cpu]`, NVIDIA's driver, and CUDA 13 with cuDNN 9, "
    "as with `pip install 'onnxruntime-gpu[cuda,cudnn]'`"
)
_NEEDS: dict[Device, str] = {
    "cpu": "install it with `pip install 'ortolan[cpu]'`",
    "cuda": _CUDA,
    "tensorrt": f"{_CUDA}, and TensorRT 10.15 or later, as with `pip install 'tensorrt-cu13<11'`",
}
_ONNXRUNTIME_ERRORS_ONLY = 3

# Measured: 20 gains what 200 does; with a busy neighbour 200 made steps 1.5 times as long.
_SPIN_US = "20"


def default_threads() -> int:
    """Return the number of cores that this process may use, a container's quota included."""
    cores = len(os.sched_getaffinity(0))
    quota = core_quota(own_groups())
    # Rounded down: with a thread too many all of them are stopped for the rest of each period.
    return cores if quota is None else max(1, min(cores, int(quota)))


def session_options(*, threads: int, spin: bool) -> ort.SessionOptions:
    """Return the options of a decoding session on ``threads`` threads.

    Threads busy-wait for the next operator of a step, for 20 microseconds before they sleep: most
    operators come sooner, and on cores that are shared nearly nothing is lost. ``spin`` lets them
    wait without end, which a busy neighbour makes expensive. Between steps nobody waits like that.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ONNXRUNTIME_ERRORS_ONLY
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if not spin:
        options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    return options


def choose_device(manifest: Manifest, asked: Device | None) -> Device:
    """Return the device asked for, or the one that the bundle was made for. Raises BundleError."""
    if asked is None or asked in manifest.devices:
        return asked or manifest.target
    raise BundleError(
        f"device must be one of {', '.join(manifest.devices)} for {manifest.name}, which was made "
        f"for {manifest.target}, got {asked}; make another with `ortolan export --for {asked}`"
    )


def ready_device(manifest: Manifest, asked: Device | None) -> Device:
    """Return the device to run a bundle on, after a look whether it is there.

    Raises ProviderError and BundleError.
    """
    require_device(asked or manifest.target)
    return choose_device(manifest, asked)


def open_session(
    path: str,
    device: Device,
    options: ort.SessionOptions,
    provider_options: Mapping[str, str] | None = None,
) -> ort.InferenceSession:
    """Return a session over the graph at ``path`` that runs on ``device`` and nowhere else.

    What TensorRT has no operator for may run on CUDA; the CPU takes part in neither. Raises
    ProviderError when the device's provider is missing or takes no part in the session.
    """
    require_device(device)
    provider = _PROVIDERS[device]
    if device == "cpu":
        return ort.InferenceSession(path, options, providers=[provider])
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    providers = [(provider, dict(provider_options or {}))]
    if device == "tensorrt":
        providers.append((_PROVIDERS["cuda"], {}))
    # Without enable_fallback=0 it would try again with other providers and print about it.
    session = ort.InferenceSession(path, options, providers=providers, enable_fallback=0)
    left_out = [name for name, _ in providers if name not in session.get_providers()]
    if left_out:
        raise ProviderError(
            f"device {device!r} cannot be used here: onnxruntime left out {', '.join(left_out)}; "
            f"{_NEEDS[device]}"
        )
    return session


def require_device(device: Device) -> None:
    """Raise ProviderError that names what to install where the device cannot be used."""
    refuse_two_installations()
    if _PROVIDERS[device] not in ort.get_available_providers():
        raise ProviderError(_missing(device))
    if device != "cpu":
        load_libraries(device)


@functools.cache  # it holds standard output back, which other threads may be writing to
def load_libraries(device: Device) -> None:
    """Load what the device's provider needs. Raises ProviderError that names what is not there.

    onnxruntime itself would only log what it could not load, and go on without the provider.
    """
    with contextlib.redirect_stdout(io.StringIO()):  # which it says what it has not found on
        ort.preload_dlls()
    folder = Path(ort.__file__).parent / "capi"
    for name in ("shared", *(("cuda", "tensorrt") if device == "tensorrt" else ("cuda",))):
        try:
            ctypes.CDLL(str(folder / f"libonnxruntime_providers_{name}.so"), ctypes.RTLD_GLOBAL)
        except OSError as exc:
            library = Path(str(exc).partition(":")[0]).name
            raise ProviderError(
                f"device {device!r} needs {library}, which cannot be loaded here; {_NEEDS[device]}"
            ) from exc


def _missing(device: Device) -> str:
    available = ", ".join(ort.get_available_providers())
    return f"device {device!r} is not available here (there are: {available}); {_NEEDS[device]}"


def refuse_two_installations() -> None:
    """Raise ProviderError when onnxruntime and onnxruntime-gpu overwrote each other's files."""
    if _is_installed("onnxruntime") and _is_installed("onnxruntime-gpu"):
        raise ProviderError(
            "onnxruntime and onnxruntime-gpu are both installed and break each other; "
            "uninstall both and install one of `ortolan[cpu]` and `ortolan[gpu]`"
        )


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def onnxruntime_version() -> str:
    """Return the version of the onnxruntime in use."""
    version: Any = ort.__version__
    return str(version)
