"""A bundle whose golden prompts go on otherwise is refused before it serves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from engines import engine_on

from ortolan_runtime.bundle import Golden, Manifest, open_bundle
from ortolan_runtime.errors import BundleError


def with_golden(bundle: Path, folder: Path, change: Callable[[Golden], Golden]) -> Path:
    """Return a copy of ``bundle`` with other golden prompts."""
    shutil.copytree(bundle, folder)
    file = folder / "bundle.json"
    manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    golden = tuple(change(one) for one in manifest.golden)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, golden=golden)))
    return folder


@pytest.mark.parametrize("kind", ["int8", "fp32"])
def test_a_sound_bundle_has_golden_prompts_and_opens(
    glass_bundle: Path, glass_bundle_fp32: Path, kind: str
) -> None:
    bundle = glass_bundle if kind == "int8" else glass_bundle_fp32
    assert len(open_bundle(bundle).manifest.golden) >= 3
    with engine_on(bundle, slots=1) as engine:
        statistics = engine.statistics()
        assert (statistics.prompt_tokens, statistics.kv_used_tokens) == (0, 0)


def test_other_logprobs_are_refused_with_the_differences(
    glass_bundle: Path, tmp_path: Path
) -> None:
    def shift(golden: Golden) -> Golden:
        return msgspec.structs.replace(golden, logprobs=tuple(x - 2.0 for x in golden.logprobs))

    bundle = with_golden(glass_bundle, tmp_path / "bad", shift)
    with pytest.raises(BundleError, match=r"differ by 2\.00, 2\.00"), engine_on(bundle, slots=1):
        pass


def test_differences_of_rounding_are_not_refused(glass_bundle: Path, tmp_path: Path) -> None:
    def shift(golden: Golden) -> Golden:
        return msgspec.structs.replace(golden, logprobs=tuple(x - 0.2 for x in golden.logprobs))

    with engine_on(with_golden(glass_bundle, tmp_path / "other", shift), slots=1):
        pass


def test_a_golden_prompt_longer_than_the_memory_is_left_out(
    glass_bundle: Path, tmp_path: Path
) -> None:
    def lengthen(golden: Golden) -> Golden:
        return msgspec.structs.replace(golden, prompt_tokens=(5,) * 40)

    bundle = with_golden(glass_bundle, tmp_path / "long", lengthen)
    token_bytes = open_bundle(bundle).manifest.kv_bytes_per_token
    with engine_on(bundle, slots=1, kv_memory_bytes=32 * token_bytes):
        pass
