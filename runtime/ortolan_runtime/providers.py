"""The execution providers: what each device needs, and the session options that go with it.

A provider that was asked for and is not there is an error that names what to install; onnxruntime
itself would fall back to the CPU in silence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import onnxruntime as ort

from ortolan_runtime.bundle import Device
from ortolan_runtime.cgroup import core_quota, own_groups
from ortolan_runtime.errors import ProviderError

_PROVIDERS: dict[Device, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_ONNXRUNTIME_ERRORS_ONLY = 3


def default_threads() -> int:
    """Return the number of cores that this process may use, a container's quota included."""
    cores = len(os.sched_getaffinity(0))
    quota = core_quota(own_groups())
    # Rounded down: with a thread too many all of them are stopped for the rest of each period.
    return cores if quota is None else max(1, min(cores, int(quota)))


def session_options(*, threads: int, spin: bool) -> ort.SessionOptions:
    """Return the options of a decoding session on ``threads`` threads.

    ``spin`` lets idle threads busy-wait for the next operator: a little faster on cores of one's
    own, wasteful on shared ones.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ONNXRUNTIME_ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    return options


def open_session(
    path: str,
    device: Device,
    options: ort.SessionOptions,
    provider_options: Mapping[str, str] | None = None,
) -> ort.InferenceSession:
    """Return a session over the graph at ``path`` that runs on ``device`` and nowhere else.

    Raises ProviderError when the device's provider is missing or takes no part in the session.
    """
    _refuse_two_installations()
    provider = _PROVIDERS[device]
    if provider not in ort.get_available_providers():
        raise ProviderError(_missing(device))
    if device != "cpu":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    providers = [(provider, dict(provider_options or {}))]
    session = ort.InferenceSession(path, options, providers=providers)
    if provider not in session.get_providers():
        raise ProviderError(_missing(device))
    return session


def _missing(device: Device) -> str:
    needs: dict[Device, str] = {
        "cpu": "install it with `pip install 'ortolan[cpu]'`",
        "cuda": "install `ortolan[gpu]` in place of `ortolan[cpu]`, and CUDA 12 with cuDNN 9",
        "tensorrt": "install `ortolan[gpu]` in place of `ortolan[cpu]`, and TensorRT 10",
    }
    available = ", ".join(ort.get_available_providers())
    return f"device {device!r} is not available here (there are: {available}); {needs[device]}"


def _refuse_two_installations() -> None:
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
