"""The KV cache in a device's memory: rows are addressed, copied by a graph, and never read here.

Not run on hardware: the device is the CPU, by the same addresses, bindings and graph.
"""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from engines import apart, assert_same, engine_around, mixed_requests, together

from ortolan_runtime.bundle import open_bundle
from ortolan_runtime.devicememory import DeviceMemory
from ortolan_runtime.kvmemory import Allocate, View
from ortolan_runtime.model import Model
from ortolan_runtime.providers import open_session, session_options

BUNDLES = ["glass_bundle_cuda", "glass_bundle_tensorrt"]
LENGTH = 128
PROMPT = np.array([40, 41, 42, 43, 44])


def allocator(bundle: Path) -> Allocate:
    """Return what makes memory of a device that is the CPU."""
    path = open_bundle(bundle).rows_graph_path
    copier = open_session(str(path), "cpu", session_options(threads=1, spin=False))
    return partial(DeviceMemory, device="cpu", copier=copier)


@pytest.fixture(params=BUNDLES)
def bundle(request: pytest.FixtureRequest) -> Path:
    """Give a bundle whose cache is float16 of any length, and one whose is float32 and static."""
    return Path(request.getfixturevalue(request.param))


@pytest.fixture
def memory(bundle: Path) -> DeviceMemory:
    made = allocator(bundle)(open_bundle(bundle).manifest, rows=4, length=LENGTH)
    assert isinstance(made, DeviceMemory)
    return made


def contents(view: View) -> np.ndarray:
    """Return the array that a view describes, which is the CPU's memory after all."""
    size = int(np.prod(view.shape)) * np.dtype(view.element).itemsize
    raw = (ctypes.c_char * size).from_address(view.address)
    return np.frombuffer(raw, view.element).reshape(view.shape)


def fill(memory: DeviceMemory, row: int, tokens: int, value: float) -> None:
    for view in memory.views(row, 1):
        contents(view)[:, :, :tokens] = value


def test_everything_is_zero_at_first(memory: DeviceMemory) -> None:
    assert all((contents(view) == 0).all() for view in memory.views(0, 4))


def test_a_view_begins_at_its_first_row(memory: DeviceMemory) -> None:
    for row in range(4):
        fill(memory, row, LENGTH, row + 1)
    for view in memory.views(1, 2):
        rows = contents(view)
        assert rows.shape[0] == 2
        assert (rows[0] == 2).all()
        assert (rows[1] == 3).all()


def test_a_copy_takes_the_first_tokens_of_all_layers(memory: DeviceMemory) -> None:
    fill(memory, 0, LENGTH, 5)
    fill(memory, 2, LENGTH, 9)
    memory.copy(0, 2, 4)
    for view in memory.views(2, 1):
        assert (contents(view)[:, :, :4] == 5).all()
        assert (contents(view)[:, :, 4:] == 9).all()
    for view in (*memory.views(1, 1), *memory.views(3, 1)):
        assert (contents(view) == 0).all()


@pytest.mark.parametrize(("one", "other"), [(2, 7), (7, 2), (0, 3), (LENGTH, LENGTH)])
def test_a_swap_exchanges_two_rows(one: int, other: int, memory: DeviceMemory) -> None:
    fill(memory, 0, one, 5)
    fill(memory, 3, other, 9)
    memory.swap(0, one, 3, other)
    for first, second in zip(memory.views(0, 1), memory.views(3, 1), strict=True):
        assert (contents(first)[:, :, :other] == 9).all()
        assert (contents(second)[:, :, :one] == 5).all()


def test_many_copies_take_no_more_memory(memory: DeviceMemory) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(100):
        memory.copy(0, 1, 10)
    before = resident()
    for _ in range(1000):
        memory.copy(0, 1, 10)
    assert resident() - before < 1 << 20


def test_a_model_computes_the_same_bits_over_either_memory(bundle: Path) -> None:
    def steps(model: Model) -> list[bytes]:
        outputs = [model.prefill(2, PROMPT, 0, np.array([4])).logits.tobytes()]
        model.copy(2, 0, 5)
        model.prefill(1, PROMPT[:3], 0, np.array([2]))
        model.swap(0, 5, 1, 3)
        lengths = np.array([3, 5], np.int32)
        return [*outputs, model.decode(np.array([50, 51]), lengths).logits.tobytes()]

    opened = open_bundle(bundle)
    host, device = (
        Model(opened, rows=4, length=LENGTH, threads=1, device="cpu", allocate=allocate)
        for allocate in (None, allocator(bundle))
    )
    assert isinstance(device.buffers, DeviceMemory)
    assert steps(host) == steps(device)


def test_what_is_cleared_is_all_behind_the_tokens_that_stay(memory: DeviceMemory) -> None:
    for row in range(3):
        fill(memory, row, LENGTH, np.nan)
    fill(memory, 1, 7, 5)
    memory.clear(1, 7)
    for view in memory.views(1, 1):
        assert (contents(view)[:, :, :7] == 5).all()
        assert (contents(view)[:, :, 7:] == 0).all()
    for view in (*memory.views(0, 1), *memory.views(2, 1)):
        assert np.isnan(contents(view)).all()


@pytest.mark.parametrize("is_on_device", [False, True])
def test_a_sequence_that_overflows_leaves_nothing_to_those_after_it(
    is_on_device: bool, glass_bundle_tensorrt: Path
) -> None:
    path = glass_bundle_tensorrt
    allocate = allocator(path) if is_on_device else None
    bundle = open_bundle(path)
    model = Model(bundle, rows=4, length=LENGTH, threads=1, device="cpu", allocate=allocate)

    def follow(row: int) -> tuple[bytes, bytes]:
        first = model.prefill(row, PROMPT, 0, np.array([4])).logits.tobytes()
        model.swap(0, 3, row, 5)  # to where another has overflowed
        return first, model.decode(np.array([50]), np.array([5], np.int32)).logits.tobytes()

    clean = follow(2)
    for row in (0, 1, 2):
        for view in model.buffers.views(row + 1, 1):  # behind the runtime's own row
            contents(view)[:] = np.nan
    with np.errstate(invalid="ignore"):
        assert np.isnan(model.prefill(1, PROMPT, 5, np.array([4])).logits).any()
    model.prefill(0, PROMPT[:3], 0, np.array([2]))
    assert follow(2) == clean


def test_an_engine_over_a_devices_memory_gives_the_bits_of_each_request_alone(
    bundle: Path,
) -> None:
    requests = mixed_requests(bundle)[:7]
    expected = apart(bundle, requests)
    around = partial(engine_around, bundle, lambda model: model, allocate=allocator(bundle))
    with around(slots=4, prefill_chunk=32) as (engine, _):
        for _ in range(2):  # the second time from kept prompts
            assert_same(together(engine, requests), expected)
        assert engine.statistics().cached_prompt_tokens > 0
