"""How much room the KV cache gets, by numbers that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ortolan_runtime.bundle import Manifest, open_bundle
from ortolan_runtime.capacity import Capacity, plan_capacity, taken_at_once
from ortolan_runtime.errors import InvalidParameter

MIB = 1 << 20


def manifest_of(bundle: Path, **fields: object) -> Manifest:
    """Return a manifest with a context of 1024 and a cache of 1024 bytes a token."""
    sizes = {"layers": 2, "kv_heads": 4, "head_size": 32, "kv_dtype": "float16"}
    changed = {**sizes, "context_length": 1024, **fields}
    manifest = msgspec.structs.replace(open_bundle(bundle).manifest, **changed)
    assert manifest.kv_bytes_per_token == 1024
    return manifest


def test_on_the_cpu_rows_cost_nothing_and_tokens_are_bounded(glass_bundle: Path) -> None:
    planned = plan_capacity(manifest_of(glass_bundle), "cpu", slots=4, kv_memory_bytes=MIB // 2)
    assert planned == Capacity(rows=8, length=512, tokens=512)


def test_a_device_has_rows_of_the_whole_context_where_they_fit(glass_bundle: Path) -> None:
    # 4 slots, a row of the runtime's own, and 2 that keep prompts: 7 MiB of 1 MiB each.
    planned = taken_at_once(manifest_of(glass_bundle), 4, 7 * MIB)
    assert planned == Capacity(rows=6, length=1024, tokens=6 * 1024)


def test_a_device_keeps_no_more_rows_than_twice_the_slots(glass_bundle: Path) -> None:
    assert taken_at_once(manifest_of(glass_bundle), 4, 100 * MIB).rows == 8


def test_on_a_device_rows_are_shorter_where_memory_is_scarce(glass_bundle: Path) -> None:
    planned = taken_at_once(manifest_of(glass_bundle), 4, 2 * MIB)
    assert planned == Capacity(rows=4, length=409, tokens=4 * 409)  # 2048 / 5


def test_a_static_cache_is_as_long_as_the_context_or_refused(glass_bundle: Path) -> None:
    manifest = manifest_of(glass_bundle, kv_layout="static")
    assert taken_at_once(manifest, 4, 5 * MIB) == Capacity(rows=4, length=1024, tokens=4096)
    with pytest.raises(InvalidParameter, match=f"must be >= {5 * MIB} bytes for 4 slots"):
        taken_at_once(manifest, 4, 5 * MIB - 1)


def test_memory_for_less_than_16_tokens_a_slot_is_refused(glass_bundle: Path) -> None:
    with pytest.raises(InvalidParameter, match=f"must be >= {5 * 16 * 1024} bytes for 4 slots"):
        taken_at_once(manifest_of(glass_bundle), 4, 5 * 15 * 1024)


def nvidia_smi(folder: Path, answer: str) -> None:
    """Put a command of that name into ``folder`` which answers as the real one does."""
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\necho '{answer}'\n")
    command.chmod(0o755)


def test_half_of_what_the_gpu_has_free_beside_the_weights_is_taken(
    glass_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    nvidia_smi(tmp_path, "30")
    manifest = manifest_of(glass_bundle, files=())
    planned = plan_capacity(manifest, "cuda", slots=10, kv_memory_bytes=None)
    assert planned == Capacity(rows=14, length=1024, tokens=14 * 1024)


@pytest.mark.parametrize("answer", [None, "NVIDIA-SMI has failed"])
def test_a_gpu_that_tells_nothing_of_its_memory_wants_it_told(
    answer: str | None, glass_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    if answer is not None:
        nvidia_smi(tmp_path, answer)
    with pytest.raises(InvalidParameter, match="--kv-memory"):
        plan_capacity(manifest_of(glass_bundle), "cuda", slots=4, kv_memory_bytes=None)


def test_a_cache_that_is_copied_gets_a_third_of_the_memory_by_default(glass_bundle: Path) -> None:
    # More slots than the memory could ever hold, so that half of it is the bound.
    planned = {
        layout: plan_capacity(
            manifest_of(glass_bundle, kv_layout=layout), "cpu", slots=1 << 30, kv_memory_bytes=None
        ).tokens
        for layout in ("shared", "concat")
    }
    # What is free may change a little between the two.
    assert planned["shared"] == pytest.approx(3 * planned["concat"], rel=0.2)
