"""The options for TensorRT cover every shape, so that no prompt length builds an engine anew.

Case A-ORT-04. Not run on hardware: what is passed is checked here by value.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnxruntime
import pytest

from ortolan_runtime.bundle import EnginePlan, Manifest, open_bundle
from ortolan_runtime.engine import EngineOptions
from ortolan_runtime.enginebuild import run_profiles
from ortolan_runtime.errors import InvalidParameter
from ortolan_runtime.model import Model
from ortolan_runtime.tensorrt import check_steps, tensorrt_options

PROFILES = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")

Shapes = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def manifest(glass_bundle_tensorrt: Path) -> Manifest:
    return open_bundle(glass_bundle_tensorrt).manifest


def options_of(manifest: Manifest, **changes: bool) -> dict[str, str]:
    """Return the options, with fields of the manifest's plan changed."""
    plan = manifest.engines
    assert isinstance(plan, EnginePlan)
    changed = msgspec.structs.replace(plan, **changes)
    return tensorrt_options(manifest, changed, Path("engines"))


def profiles_of(options: dict[str, str]) -> dict[str, list[Shapes]]:
    """Return for each input, for each profile in turn, its three shapes."""
    found: dict[str, list[Shapes]] = {}
    for option in PROFILES:
        seen: dict[str, int] = {}
        for entry in options[option].split(","):
            name, _, shape = entry.rpartition(":")
            place = seen.setdefault(name, 0)
            profiles = found.setdefault(name, [])
            if place == len(profiles):
                profiles.append([])
            profiles[place].append(tuple(map(int, shape.split("x"))))
            seen[name] += 1
    return found


def test_every_input_with_a_dynamic_shape_has_both_profiles(
    manifest: Manifest, glass_bundle_tensorrt: Path
) -> None:
    session = onnxruntime.InferenceSession(
        glass_bundle_tensorrt / "model.onnx", providers=["CPUExecutionProvider"]
    )
    dynamic = {
        one.name for one in session.get_inputs() if any(not isinstance(d, int) for d in one.shape)
    }
    profiles = profiles_of(options_of(manifest))
    assert set(profiles) == dynamic
    assert all(len(ranges) == 2 for ranges in profiles.values())


def test_each_range_goes_up_from_the_least_to_the_greatest(manifest: Manifest) -> None:
    for ranges in profiles_of(options_of(manifest)).values():
        for least, usual, greatest in ranges:
            for low, middle, high in zip(least, usual, greatest, strict=True):
                assert 1 <= low <= middle <= high


def test_the_ranges_cover_all_that_the_engine_runs(manifest: Manifest) -> None:
    decode, prefill = profiles_of(options_of(manifest))["input_ids"]
    assert (decode[0], decode[2]) == ((1, 1), (16, 1))
    assert (prefill[0], prefill[2]) == ((1, 1), (1, 256))


def test_the_cache_has_its_full_length_in_every_profile(manifest: Manifest) -> None:
    ranges = profiles_of(options_of(manifest))["past.0.key"]
    assert {shape[2] for profile in ranges for shape in profile} == {128}


def test_engines_and_timings_are_kept_on_disk(manifest: Manifest) -> None:
    options = options_of(manifest)
    assert options["trt_engine_cache_enable"] == options["trt_timing_cache_enable"] == "1"
    assert options["trt_engine_cache_path"] == options["trt_timing_cache_path"] == "engines"


def test_engines_and_timings_are_kept_only_where_the_bundle_says_so(manifest: Manifest) -> None:
    options = options_of(manifest, engine_cache=False, timing_cache=False)
    assert options["trt_engine_cache_enable"] == options["trt_timing_cache_enable"] == "0"


@pytest.mark.parametrize(("fp16", "enabled"), [(True, "1"), (False, "0")])
def test_fp16_is_allowed_where_the_bundle_is_fp16(
    manifest: Manifest, fp16: bool, enabled: str
) -> None:
    assert options_of(manifest, fp16=fp16)["trt_fp16_enable"] == enabled


def test_the_steps_of_an_engine_fit_the_plan_of_a_bundle_by_default(manifest: Manifest) -> None:
    assert manifest.engines is not None
    usual = EngineOptions()
    check_steps(manifest.engines, rows=usual.slots, chunk=usual.prefill_chunk)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"rows": 17, "chunk": 256}, "`slots` must be <= 16, .*--engine-rows.*, got 17"),
        ({"rows": 1, "chunk": 257}, "`prefill_chunk` must be <= 256, .*--engine-chunk.*, got 257"),
    ],
)
def test_steps_that_no_engine_was_planned_for_are_refused(
    steps: dict[str, int], message: str, manifest: Manifest
) -> None:
    assert manifest.engines is not None
    with pytest.raises(InvalidParameter, match=message):
        check_steps(manifest.engines, **steps)


def test_engines_are_built_by_a_step_of_each_profile(glass_bundle_tensorrt: Path) -> None:
    bundle = open_bundle(glass_bundle_tensorrt)
    assert bundle.manifest.engines is not None
    model = Model(bundle, rows=2, length=128, threads=1, device="cpu")
    run_profiles(model, bundle.manifest.engines)
    assert model.binding_count == 2
