"""A device that was asked for and is not there is an error, and never a silent fallback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import onnxruntime
import pytest

from ortolan_runtime.bundle import Device, open_bundle
from ortolan_runtime.errors import BundleError, ProviderError
from ortolan_runtime.providers import (
    choose_device,
    default_threads,
    load_libraries,
    open_session,
    refuse_two_installations,
    session_options,
)

HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def test_a_session_runs_on_the_cpu_alone(glass_bundle: Path) -> None:
    options = session_options(threads=1, spin=False)
    session = open_session(str(glass_bundle / "model.onnx"), "cpu", options)
    assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.skipif(HAS_CUDA, reason="this onnxruntime has CUDA")
@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_device_that_is_missing_is_named_with_what_it_needs(
    device: Device, glass_bundle: Path
) -> None:
    options = session_options(threads=1, spin=False)
    with pytest.raises(ProviderError) as caught:
        open_session(str(glass_bundle / "model.onnx"), device, options)
    message = str(caught.value)
    assert f"device '{device}' is not available here" in message
    assert "CPUExecutionProvider" in message
    assert "ortolan[gpu]" in message
    assert "onnxruntime-gpu[cuda,cudnn]" in message
    assert ("tensorrt-cu13" in message) == (device == "tensorrt")
    assert "\n" not in message


@pytest.mark.parametrize("spin", [True, False])
def test_threads_and_spinning_are_as_asked_for(spin: bool) -> None:
    options = session_options(threads=3, spin=spin)
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    limit = "session.intra_op.spin_duration_us"
    if spin:
        with pytest.raises(RuntimeError, match=limit):
            options.get_session_config_entry(limit)
    else:
        assert options.get_session_config_entry(limit) == "20"


def test_threads_default_to_the_cores_that_the_process_may_use() -> None:
    assert default_threads() == len(os.sched_getaffinity(0))


@pytest.mark.skipif(HAS_CUDA, reason="this onnxruntime has CUDA")
@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_library_that_cannot_be_loaded_is_named(device: Device) -> None:
    with pytest.raises(ProviderError) as caught:
        load_libraries(device)
    message = str(caught.value)
    assert message.startswith(f"device '{device}' needs libonnxruntime_providers_cuda.so, which ")
    assert "CUDA 13 with cuDNN 9" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("fixture", "devices"),
    [
        ("glass_bundle", ("cpu",)),
        ("glass_bundle_cuda", ("cuda", "cpu")),
        ("glass_bundle_tensorrt", ("tensorrt", "cuda", "cpu")),
    ],
)
def test_the_manifest_decides_where_a_bundle_runs(
    fixture: str, devices: tuple[Device, ...], request: pytest.FixtureRequest
) -> None:
    manifest = open_bundle(request.getfixturevalue(fixture)).manifest
    assert choose_device(manifest, None) == devices[0]
    for device in get_args(Device):
        if device in devices:
            assert choose_device(manifest, device) == device
            continue
        with pytest.raises(BundleError) as caught:
            choose_device(manifest, device)
        assert f"which was made for {devices[0]}, got {device}; make another" in str(caught.value)
        assert f"`ortolan export --for {device}`" in str(caught.value)


def test_two_installations_of_onnxruntime_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnxruntime", "onnxruntime_gpu"):
        folder = tmp_path / f"{name}-1.32.0.dist-info"
        folder.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.32.0\n"
        (folder / "METADATA").write_text(metadata)
    refuse_two_installations()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ProviderError, match="are both installed and break each other; uninstall"):
        refuse_two_installations()
