"""Limits of containers, read from folders like those of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortolan_runtime.cgroup import core_quota, memory_left_bytes, own_groups


def group(folder: Path, **files: str) -> Path:
    """Write a group's files; ``cpu_max`` is ``cpu.max``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give the root of a hierarchy."""
    return group(tmp_path / "cgroup", cgroup_controllers="cpu memory\n")


def groups(root: Path, path: str) -> list[Path]:
    own = root.parent / "own"
    own.write_text(f"4:memory:/old\n0::{path}\n")
    return own_groups(root, own)


def test_groups_are_found_from_the_innermost_to_the_root(root: Path) -> None:
    inner = group(root / "a" / "b")
    assert groups(root, "/a/b") == [inner, root / "a", root]


def test_in_a_container_the_group_is_the_root(root: Path) -> None:
    assert groups(root, "/") == [root]
    assert groups(root, "/../../elsewhere") == [root]
    assert groups(root, "/unseen") == [root]


def test_without_version_2_there_are_no_groups_and_no_limits(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("4:memory:/\n")
    assert own_groups(tmp_path, tmp_path / "own") == []
    assert own_groups(tmp_path, tmp_path / "missing") == []
    assert core_quota([]) is None
    assert memory_left_bytes([]) is None


def test_the_tightest_quota_of_cores_counts(root: Path) -> None:
    inner = group(root / "a", cpu_max="max 100000\n")
    assert core_quota([inner, root]) is None
    group(root, cpu_max="250000 100000\n")
    assert core_quota([inner, root]) == 2.5
    group(inner, cpu_max="50000 100000\n")
    assert core_quota([inner, root]) == 0.5


def test_memory_that_is_left_counts_unused_file_pages_as_free(root: Path) -> None:
    inner = group(root / "a", memory_max="1000\n", memory_current="700\n")
    assert memory_left_bytes([inner, root]) == 300
    group(inner, memory_stat="anon 400\ninactive_file 200\nactive_file 100\n")
    assert memory_left_bytes([inner, root]) == 500
    group(root, memory_max="900\n", memory_current="850\n")
    assert memory_left_bytes([inner, root]) == 50
    group(root, memory_max="max\n")
    group(inner, memory_max="100\n")
    assert memory_left_bytes([inner, root]) == 0


def test_files_that_are_not_there_are_no_limit(root: Path) -> None:
    assert core_quota([root]) is None
    assert memory_left_bytes([root]) is None
