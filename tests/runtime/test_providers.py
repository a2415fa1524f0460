"""A device that was asked for and is not there is an error, and never a silent fallback."""

from __future__ import annotations

import os
from pathlib import Path

import onnxruntime
import pytest

from ortolan_runtime.errors import ProviderError
from ortolan_runtime.providers import (
    Device,
    default_threads,
    open_session,
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
    assert "\n" not in message


@pytest.mark.parametrize("spin", [True, False])
def test_threads_and_spinning_are_as_asked_for(spin: bool) -> None:
    options = session_options(threads=3, spin=spin)
    assert options.intra_op_num_threads == 3
    entry = options.get_session_config_entry("session.intra_op.allow_spinning")
    assert entry == ("1" if spin else "0")


def test_threads_default_to_the_cores_that_the_process_may_use() -> None:
    assert default_threads() == len(os.sched_getaffinity(0))
