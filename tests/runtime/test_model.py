"""The session runs rows of any lengths, and the KV buffers take and give back real memory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from engines import bindings_made

from ortolan_runtime.bundle import Bundle, Manifest, open_bundle
from ortolan_runtime.errors import BundleError, MemoryRefused
from ortolan_runtime.kvbuffers import KVBuffers
from ortolan_runtime.logits import row_logsumexp
from ortolan_runtime.model import Model

MB = 1 << 20
PROMPT = np.array([40, 41, 42, 43, 44])


def manifest_of(bundle: Path, **fields: object) -> Manifest:
    return msgspec.structs.replace(open_bundle(bundle).manifest, **fields)


@pytest.fixture
def large(glass_bundle: Path) -> KVBuffers:
    """Give buffers of 4 rows of 32 MB: a layer, two heads of 32 numbers, 65,536 tokens."""
    manifest = manifest_of(glass_bundle, layers=1, kv_heads=2, head_size=32)
    return KVBuffers(manifest, rows=4, length=1 << 16)


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("rows", [1 << 40, 1 << 60])
def test_rows_that_no_system_has_room_for_are_refused_by_the_option(
    glass_bundle: Path, rows: int
) -> None:
    """The first is refused by the system, the second by Python."""
    manifest = open_bundle(glass_bundle).manifest
    with pytest.raises(MemoryRefused, match="take fewer `slots`"):
        KVBuffers(manifest, rows=rows, length=1 << 16)


def fill(buffers: KVBuffers, row: int, tokens: int, value: float = 1.0) -> None:
    for array in buffers.arrays:
        array[row, :, :tokens] = value


def test_buffers_that_nobody_wrote_take_no_memory(glass_bundle: Path) -> None:
    before = resident()
    manifest = manifest_of(glass_bundle, layers=8, kv_heads=2, head_size=32)
    buffers = KVBuffers(manifest, rows=16, length=1 << 16)
    assert sum(array.nbytes for array in buffers.arrays) == 4096 * MB
    assert resident() - before < 8 * MB


def test_a_row_takes_memory_as_its_tokens_are_written(large: KVBuffers) -> None:
    before = resident()
    fill(large, 2, 1 << 14)
    assert 7 * MB < resident() - before < 12 * MB
    fill(large, 2, 1 << 16)
    assert 31 * MB < resident() - before < 36 * MB


def test_a_released_row_gives_its_memory_back(large: KVBuffers) -> None:
    fill(large, 2, 1 << 16)
    before = resident()
    large.release(2, 0)
    assert before - resident() > 31 * MB


def test_a_release_keeps_the_tokens_that_it_is_told_to_keep(large: KVBuffers) -> None:
    fill(large, 1, 1 << 16)
    fill(large, 2, 1 << 16)
    before = resident()
    large.release(1, 1 << 14)
    assert 23 * MB < before - resident() < 25 * MB
    for array in large.arrays:
        assert (array[1, :, : 1 << 14] == 1).all()
        assert (array[2] == 1).all()


def test_a_release_touches_no_neighbour_where_pages_are_shared(glass_bundle: Path) -> None:
    # 100 tokens of 16 float32 are 6400 bytes, so that heads and rows meet inside pages.
    manifest = manifest_of(glass_bundle, layers=1, kv_heads=3, head_size=16)
    buffers = KVBuffers(manifest, rows=5, length=100)
    for row in range(5):
        fill(buffers, row, 100, row + 1)
    buffers.release(2, 7)
    for array in buffers.arrays:
        for row in (0, 1, 3, 4):
            assert (array[row] == row + 1).all()
        assert (array[2, :, :7] == 3).all()


def test_a_copy_takes_the_first_tokens_of_all_layers(glass_bundle: Path) -> None:
    buffers = KVBuffers(manifest_of(glass_bundle), rows=3, length=10)
    fill(buffers, 0, 10, 5.0)
    buffers.copy(0, 2, 4)
    for array in buffers.arrays:
        assert (array[2, :, :4] == 5).all()
        assert (array[2, :, 4:] == 0).all()


def test_a_swap_exchanges_two_rows_of_different_lengths(glass_bundle: Path) -> None:
    buffers = KVBuffers(manifest_of(glass_bundle), rows=3, length=10)
    fill(buffers, 0, 2, 5.0)
    fill(buffers, 1, 7, 9.0)
    buffers.swap(0, 2, 1, 7)
    for array in buffers.arrays:
        assert (array[0, :, :7] == 9).all()
        assert (array[1, :, :2] == 5).all()


def test_a_swap_leaves_the_shorter_row_no_memory_of_the_longer_one(large: KVBuffers) -> None:
    fill(large, 0, 1 << 16)
    fill(large, 1, 1 << 10)
    before = resident()
    large.swap(0, 1 << 16, 1, 1 << 10)
    assert resident() - before < 4 * MB


def model_of(bundle: Path, rows: int = 4) -> Model:
    return Model(open_bundle(bundle), rows=rows, length=128, threads=1, device="cpu")


@pytest.fixture(params=["int8", "fp32", "fp16 for cuda", "fp32 for tensorrt"])
def model(request: pytest.FixtureRequest) -> Model:
    """Give models whose lone rows are exact, and whose are not; with inputs of either flavour."""
    fixture = {
        "int8": "glass_bundle",
        "fp32": "glass_bundle_fp32",
        "fp16 for cuda": "glass_bundle_cuda",
        "fp32 for tensorrt": "glass_bundle_tensorrt",
    }[request.param]
    return model_of(request.getfixturevalue(fixture))


def last_logits(model: Model, row: int, tokens: np.ndarray, past: int = 0) -> bytes:
    return model.prefill(row, tokens, past, np.array([len(tokens) - 1])).logits.tobytes()


def test_a_prompt_gives_the_same_logits_in_any_row(model: Model) -> None:
    assert len({last_logits(model, row, PROMPT) for row in range(4)}) == 1


def test_a_prompt_in_two_chunks_gives_the_same_logits(model: Model) -> None:
    whole = last_logits(model, 0, PROMPT)
    model.prefill(1, PROMPT[:3], 0, np.array([2]))
    assert last_logits(model, 1, PROMPT[3:], past=3) == whole


def test_logits_at_several_positions_are_those_at_each(model: Model) -> None:
    several = model.prefill(0, PROMPT, 0, np.array([1, 3, 4])).logits.copy()
    for index, position in enumerate((1, 3, 4)):
        one = model.prefill(1, PROMPT, 0, np.array([position])).logits
        assert one.tobytes() == several[index].tobytes()


def test_a_row_decodes_alike_alone_and_beside_rows_of_other_lengths(model: Model) -> None:
    for row, length in enumerate((5, 2, 4)):
        model.prefill(row, PROMPT[:length], 0, np.array([length - 1]))
    batch = model.decode(np.array([50, 51, 52]), np.array([5, 2, 4], np.int32)).logits.copy()
    model.prefill(0, PROMPT, 0, np.array([4]))
    lone = model.decode(np.array([50]), np.array([5], np.int32)).logits
    assert lone.shape == (1, 1024)
    assert lone[0].tobytes() == batch[0].tobytes()


def test_a_decoded_token_is_there_for_the_next_one(model: Model) -> None:
    whole = last_logits(model, 0, PROMPT)
    model.prefill(0, PROMPT[:3], 0, np.array([2]))
    model.decode(PROMPT[3:4], np.array([3], np.int32))
    output = model.decode(PROMPT[4:], np.array([4], np.int32))
    whole_logits = np.frombuffer(whole, np.float32)
    # A decode step rounds otherwise than a prefill, but not by more than float32 and int8 do.
    assert np.corrcoef(output.logits[0], whole_logits)[0, 1] > 0.99


def test_a_copied_row_goes_on_like_its_source(model: Model) -> None:
    model.prefill(0, PROMPT, 0, np.array([4]))
    model.copy(0, 1, 5)
    output = model.decode(np.array([50, 50]), np.array([5, 5], np.int32))
    assert output.logits[0].tobytes() == output.logits[1].tobytes()


def test_swapped_rows_go_on_in_each_others_place(model: Model) -> None:
    for row, length in enumerate((5, 3)):
        model.prefill(row, PROMPT[:length], 0, np.array([length - 1]))
    before = model.decode(np.array([50, 51]), np.array([5, 3], np.int32)).logits.copy()
    model.swap(0, 5, 1, 3)
    after = model.decode(np.array([51, 50]), np.array([3, 5], np.int32)).logits
    assert after[::-1].tobytes() == before.tobytes()


def logits_over_garbage(model: Model, garbage: float) -> tuple[bytes, bytes]:
    """Return a step's logits, and those with garbage behind the end of every row."""
    model.prefill(0, PROMPT, 0, np.array([4]))
    clean = model.decode(np.array([50]), np.array([5], np.int32)).logits.tobytes()
    for array in model.buffers.arrays:
        array[:, :, 5:] = garbage
    return clean, model.decode(np.array([50]), np.array([5], np.int32)).logits.tobytes()


def test_what_lies_behind_a_rows_end_changes_nothing(model: Model) -> None:
    clean, given = logits_over_garbage(model, 1e4)
    assert given == clean


@pytest.mark.parametrize("fixture", ["glass_bundle", "glass_bundle_fp32", "glass_bundle_cuda"])
def test_a_fused_graph_never_reads_what_lies_behind_a_rows_end(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    clean, given = logits_over_garbage(model_of(request.getfixturevalue(fixture)), np.nan)
    assert given == clean


def test_the_logsumexp_is_that_of_the_logits(model: Model) -> None:
    output = model.prefill(0, PROMPT, 0, np.arange(5))
    assert output.logsumexp == pytest.approx(row_logsumexp(output.logits), abs=1e-5)


def test_the_logsumexp_of_a_row_does_not_depend_on_how_many_there_are(model: Model) -> None:
    tokens = np.random.default_rng(0).integers(4, 1000, 100)
    whole = model.prefill(0, tokens, 0, np.arange(100)).logsumexp.copy()
    for count in (1, 3, 7):
        for start in range(100 - count):
            part = model.prefill(0, tokens, 0, np.arange(start, start + count)).logsumexp
            assert part.tobytes() == whole[start : start + count].tobytes()


def test_row_logsumexp_is_exact_on_numbers_that_overflow() -> None:
    rows = np.array([[1000.0, 1000.0], [-1000.0, -1000.0], [0.0, -np.inf]], np.float32)
    assert row_logsumexp(rows) == pytest.approx([1000 + np.log(2), -1000 + np.log(2), 0.0])


def test_many_steps_of_changing_sizes_make_no_new_bindings(model: Model) -> None:
    made = bindings_made(model)
    assert made[0] == made[-1]


def copied(bundle: Path, folder: Path) -> Bundle:
    """Return a copy whose files no check has seen."""
    path = shutil.copytree(bundle, folder / "copy")
    return Bundle(path, open_bundle(bundle).manifest)


@pytest.mark.parametrize("damage", [b"", b"\x00garbage"])
def test_a_damaged_graph_is_a_bundle_error_of_one_line(
    damage: bytes, glass_bundle: Path, tmp_path: Path
) -> None:
    bundle = copied(glass_bundle, tmp_path)
    bundle.graph_path.write_bytes(damage)
    with pytest.raises(BundleError, match="model.onnx cannot be loaded") as caught:
        Model(bundle, rows=2, length=16, threads=1)
    assert "\n" not in str(caught.value)


def test_weights_that_end_too_early_are_a_bundle_error(glass_bundle: Path, tmp_path: Path) -> None:
    bundle = copied(glass_bundle, tmp_path)
    weights = bundle.path / "model.onnx.data"
    os.truncate(weights, weights.stat().st_size // 2)
    with pytest.raises(BundleError, match="model.onnx cannot be loaded"):
        Model(bundle, rows=2, length=16, threads=1)


def test_weights_that_are_missing_are_a_bundle_error(glass_bundle: Path, tmp_path: Path) -> None:
    bundle = copied(glass_bundle, tmp_path)
    (bundle.path / "model.onnx.data").unlink()
    with pytest.raises(BundleError, match="model.onnx cannot be loaded"):
        Model(bundle, rows=2, length=16, threads=1)
