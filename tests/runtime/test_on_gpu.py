"""What only a GPU can show; `pytest -m gpu tests/runtime/test_on_gpu.py` on a machine that has one.

Nobody has run these on hardware yet: where one fails, the device path is wrong, or the test is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import alone, mixed_requests, together

from ortolan_runtime.bundle import Device, open_bundle
from ortolan_runtime.devicememory import DeviceMemory
from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_runtime.enginebuild import build_engines
from ortolan_runtime.model import Model

pytestmark = pytest.mark.gpu

RUNS: list[tuple[str, Device]] = [
    ("glass_bundle_cuda", "cuda"),
    ("glass_bundle_tensorrt", "tensorrt"),
    ("glass_bundle_tensorrt", "cuda"),
]


@pytest.fixture(params=RUNS, ids=lambda run: f"{run[0]} on {run[1]}")
def run(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Device]:
    """Give a bundle and a device for it; TensorRT's engines go to a folder of the test's."""
    monkeypatch.setenv("ORTOLAN_CACHE", str(tmp_path))
    fixture, device = request.param
    return request.getfixturevalue(fixture), device


@pytest.fixture
def engine(run: tuple[Path, Device]) -> Iterator[Engine]:
    """Give an engine, which has computed the golden prompts as the CPU did to be one."""
    bundle, device = run
    options = EngineOptions(device=device, slots=8, prefill_chunk=32)
    with Engine.start(open_bundle(bundle), options) as started:
        yield started


def test_a_request_gives_the_same_bits_alone_and_among_others(
    engine: Engine, run: tuple[Path, Device]
) -> None:
    requests = mixed_requests(run[0])
    expected = [outcome.bits() for outcome in alone(engine, requests)]
    for _ in range(2):
        assert [outcome.bits() for outcome in together(engine, requests)] == expected
    assert engine.statistics().cached_prompt_tokens > 0


def test_the_cache_lies_in_the_devices_memory(run: tuple[Path, Device]) -> None:
    bundle, device = run
    model = Model(open_bundle(bundle), rows=2, length=64, threads=1, device=device)
    assert isinstance(model.buffers, DeviceMemory)
    assert {view.device for view in model.buffers.views(0, 1)} == {"cuda"}


def test_engines_are_built_once_and_kept(
    glass_bundle_tensorrt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTOLAN_CACHE", str(tmp_path))
    bundle = open_bundle(glass_bundle_tensorrt)
    built = {file: file.stat().st_mtime_ns for file in build_engines(bundle)}
    assert any(file.suffix == ".engine" for file in built)
    with Engine.start(bundle, EngineOptions(slots=4)) as engine:
        engine.complete("The", max_tokens=40)
    kept = {file: file.stat().st_mtime_ns for file in built}
    assert {f: t for f, t in kept.items() if f.suffix == ".engine"} == {
        f: t for f, t in built.items() if f.suffix == ".engine"
    }
