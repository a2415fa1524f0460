"""Which bundles are served, and each one's share of the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ortolan_runtime.engine import EngineOptions
from ortolan_runtime.errors import BundleError, InvalidParameter
from ortolan_server.bundles import NamedPath, named_paths, shared_options, shares


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder of two bundles and of something else."""
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bundle.json").touch()
    (tmp_path / "c").mkdir()
    return tmp_path


def test_a_folder_of_bundles_is_all_of_them_by_name(folder: Path) -> None:
    """What is none is left out."""
    assert named_paths([str(folder)]) == [NamedPath(folder / "a"), NamedPath(folder / "b")]


def test_a_bundle_may_be_given_a_name(folder: Path) -> None:
    """A folder whose own name has an equals sign is that folder."""
    odd = folder / "x=y"
    odd.mkdir()
    found = named_paths([f"small={folder / 'a'}", str(folder / "b"), str(odd)])
    assert found == [
        NamedPath(folder / "a", "small"),
        NamedPath(folder / "b"),
        NamedPath(odd),
    ]


@pytest.mark.parametrize("word", ["=a", "a="])
def test_a_name_without_a_folder_is_refused(word: str) -> None:
    """And a folder without a name."""
    with pytest.raises(BundleError, match="NAME=FOLDER"):
        named_paths([word])


@pytest.mark.parametrize(
    ("total", "wanted", "given"),
    [
        (100, [100], [100]),
        (100, [90, 90], [50, 50]),
        (100, [10, 200], [10, 90]),
        (100, [200, 10, 200], [45, 10, 45]),
        (100, [10, 20], [10, 20]),
        (7, [9, 9], [3, 4]),
    ],
)
def test_what_one_cannot_use_the_others_have(
    total: int, wanted: list[int], given: list[int]
) -> None:
    """And never more than there is."""
    assert shares(total, wanted) == given


def small_bundle(*devices: str) -> Any:
    """Return what is asked of a bundle whose context takes 1000 bytes."""
    manifest = SimpleNamespace(
        name="small",
        target=devices[0],
        devices=devices,
        context_length=100,
        kv_bytes_per_token=10,
    )
    return SimpleNamespace(manifest=manifest)


def test_bundles_that_share_a_gpu_want_their_memory_told() -> None:
    """What is free there is nothing that the CPU's share says."""
    both = [small_bundle("cuda", "cpu"), small_bundle("cpu")]
    with pytest.raises(InvalidParameter, match="`kv_memory` must be given"):
        shared_options(both, EngineOptions())
    assert len(shared_options(both, EngineOptions(kv_memory_bytes=1000))) == 2
    assert len(shared_options(both, EngineOptions(device="cpu"))) == 2


def test_one_bundle_has_the_machine_and_several_share_it() -> None:
    """Threads that were asked for are each engine's."""
    bundle = small_bundle("cpu")
    options = EngineOptions(slots=4, kv_memory_bytes=6000, threads=3)
    assert shared_options([bundle], options) == [options]
    both = shared_options([bundle, bundle], options)
    assert [one.kv_memory_bytes for one in both] == [3000, 3000]
    assert [one.threads for one in both] == [3, 3]
