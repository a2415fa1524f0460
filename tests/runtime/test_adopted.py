"""Graphs of other exporters run as all others do, to the bit: those that return a longer cache than
they take, and those that write into the cache where it lies."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from engines import (
    Outcome,
    alone,
    apart,
    assert_same,
    bindings_made,
    engine_on,
    mixed_requests,
    together,
)

from foreign_graphs import write_export
from ortolan_export.adopt import adopt
from ortolan_runtime.bundle import Bundle, Padding, open_bundle
from ortolan_runtime.errors import BundleError
from ortolan_runtime.model import Model
from ortolan_runtime.providers import choose_device

PADDINGS: list[Padding] = ["right", "left", "none"]
PROMPT = np.array([40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50])


@pytest.fixture(scope="module")
def bundles(glass_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Give glassllm's English model as other exporters would have written it, by KV layout."""
    made = {}
    for layout in ("concat", "shared"):
        folder = tmp_path_factory.mktemp(layout)
        write_export(folder / "export", glass_checkpoint, is_fused=layout == "shared")
        assert adopt(folder / "export", folder / "bundle").kv_layout == layout
        made[layout] = open_bundle(folder / "bundle")
    return made


@pytest.fixture(scope="module")
def bundle(bundles: dict[str, Bundle]) -> Bundle:
    """Give the model of the layout concat."""
    return bundles["concat"]


@pytest.fixture(scope="module")
def expected(bundles: dict[str, Bundle]) -> dict[str, list[Outcome]]:
    """Give each request's outcome on an engine of its own."""
    return {
        layout: apart(bundle.path, mixed_requests(bundle.path))
        for layout, bundle in bundles.items()
    }


@pytest.mark.parametrize("layout", ["concat", "shared"])
@pytest.mark.parametrize("options", [{"prefill_chunk": 7}, {"slots": 4, "threads": 2}])
def test_neither_company_nor_chunks_nor_a_warm_cache_change_a_bit(
    options: dict[str, int],
    layout: str,
    bundles: dict[str, Bundle],
    expected: dict[str, list[Outcome]],
) -> None:
    path, right = bundles[layout].path, expected[layout]
    requests = mixed_requests(path)
    with engine_on(path, **{"slots": 16, **options}) as engine:
        assert_same(together(engine, requests), right)
        assert_same(alone(engine, requests[:5]), right[:5])
        assert_same(together(engine, requests[::-1]), right[::-1])
        assert engine.statistics().cached_prompt_tokens > 0


@pytest.mark.parametrize("layout", ["concat", "shared"])
def test_preemption_for_want_of_memory_changes_no_bit(
    layout: str, bundles: dict[str, Bundle], expected: dict[str, list[Outcome]]
) -> None:
    bundle = bundles[layout]
    memory = 128 * bundle.manifest.kv_bytes_per_token
    with engine_on(bundle.path, slots=16, kv_memory_bytes=memory) as engine:
        assert_same(together(engine, mixed_requests(bundle.path)), expected[layout])
        assert engine.statistics().preemptions > 0


@pytest.mark.parametrize("layout", ["concat", "shared"])
def test_the_text_is_that_of_the_native_bundle(
    layout: str,
    bundles: dict[str, Bundle],
    glass_bundle_fp32: Path,
    expected: dict[str, list[Outcome]],
) -> None:
    requests = mixed_requests(bundles[layout].path)
    with engine_on(glass_bundle_fp32, slots=1) as engine:
        native = alone(engine, requests)
    # The graphs add in other orders, so that a draw may fall to a neighbour now and then.
    pairs = zip(expected[layout], native, strict=True)
    assert sum(ours.ids == theirs.ids for ours, theirs in pairs) >= len(requests) - 2


@pytest.mark.parametrize("has_keep", [False, True])
def test_many_steps_in_place_make_no_new_bindings(
    has_keep: bool, glass_checkpoint: Path, tmp_path: Path
) -> None:
    write_export(tmp_path / "export", glass_checkpoint, is_fused=True, has_keep=has_keep)
    adopt(tmp_path / "export", tmp_path / "bundle")
    model = Model(open_bundle(tmp_path / "bundle"), rows=4, length=128, threads=1)
    made = bindings_made(model)
    assert made[0] == made[-1]


def model_of(bundle: Bundle, padding: Padding, *, relaxed: bool = False) -> Model:
    assert bundle.manifest.masked_graph is not None
    graph = msgspec.structs.replace(bundle.manifest.masked_graph, padding=padding)
    changed = Bundle(bundle.path, msgspec.structs.replace(bundle.manifest, masked_graph=graph))
    model = Model(changed, rows=5, length=128, threads=1, relaxed=relaxed)
    for array in model.buffers.arrays:
        array[:] = np.nan  # what no row has written, no row may read
    return model


def decoded(model: Model, lengths: list[int], steps: int = 1) -> bytes:
    """Return the first row's logits after prompts of these lengths and so many decode steps."""
    for row, length in enumerate(lengths):
        model.prefill(row, np.resize(PROMPT, length) + row, 0, np.array([length - 1]))
    past = np.array(lengths, np.int32)
    for step in range(steps):
        output = model.decode(np.arange(len(lengths)) + 60 + step, past + step)
    return output.logits[0].tobytes()


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("steps", [1, 70])
def test_a_row_has_the_same_bits_in_any_company(
    padding: Padding, steps: int, bundle: Bundle
) -> None:
    model = model_of(bundle, padding)
    right = decoded(model, [11], steps)
    for company in ([11, 50], [11, 11], [11, 2, 3, 50], [11, 30, 40, 20, 10]):
        assert decoded(model, company, steps) == right


@pytest.mark.parametrize("padding", PADDINGS)
def test_every_padding_gives_the_same_logits_but_for_rounding(
    padding: Padding, bundle: Bundle
) -> None:
    found = np.frombuffer(decoded(model_of(bundle, padding), [11, 50], 3), np.float32)
    plain = np.frombuffer(decoded(model_of(bundle, "none"), [11], 3), np.float32)
    assert found == pytest.approx(plain, abs=1e-4)


def test_relaxed_runs_rows_of_all_lengths_at_once(bundle: Bundle) -> None:
    found = np.frombuffer(decoded(model_of(bundle, "left", relaxed=True), [11, 100]), np.float32)
    plain = np.frombuffer(decoded(model_of(bundle, "left"), [11, 100]), np.float32)
    assert found == pytest.approx(plain, abs=1e-4)


def test_rows_go_on_after_they_were_copied_swapped_and_given_back(bundle: Bundle) -> None:
    model = model_of(bundle, "right")
    right = decoded(model, [11, 20])
    for row, length in ((3, 11), (0, 20)):  # each in the other's place, with company between
        model.prefill(row, np.resize(PROMPT, length) + (row == 0), 0, np.array([length - 1]))
    model.decode(np.array([1]), np.array([20], np.int32))
    model.swap(0, 21, 3, 11)
    model.copy(3, 1, 20)
    model.release(3, 0)
    output = model.decode(np.array([60, 61]), np.array([11, 20], np.int32))
    assert output.logits[0].tobytes() == right


def test_the_last_place_of_the_context_can_be_written(bundle: Bundle) -> None:
    for padding in PADDINGS:
        model = model_of(bundle, padding)
        model.prefill(0, np.resize(PROMPT, 127), 0, np.array([126]))
        output = model.decode(np.array([60]), np.array([127], np.int32))
        assert np.isfinite(output.logits).all()


def test_another_device_is_refused_with_the_way_out(bundle: Bundle) -> None:
    refusal = "device must be one of cpu for .*, got cuda; make another with `ortolan export --for"
    with pytest.raises(BundleError, match=refusal):
        choose_device(bundle.manifest, "cuda")
