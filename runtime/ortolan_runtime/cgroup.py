"""What Linux's control groups leave to this process, as a container or a unit is given it.

Version 2 alone: https://docs.kernel.org/admin-guide/cgroup-v2.html. A limit holds for everything
below the group that it is set on, so the tightest one on the way to the root counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def own_groups(root: Path = _ROOT, own: Path = _OWN) -> list[Path]:
    """Return the folders of this process's group and of those around it; [] where there is none."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if path is None or not (root / "cgroup.controllers").exists():
        return []
    folder = root / path
    # A container that shares the host's namespace is told a path that it does not see.
    if ".." in folder.parts or not folder.is_dir():
        return [root]
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]


def core_quota(groups: list[Path]) -> float | None:
    """Return how many cores' time may be used on average; None without a limit."""
    quotas = []
    for words in _files(groups, "cpu.max"):
        quota, period = words[:2]
        if quota != "max":
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_left_bytes(groups: list[Path]) -> int | None:
    """Return how much more memory may be used; None without a limit.

    File pages that are not in use do not count: they go when memory is short.
    """
    left = []
    for group in groups:
        limit = next(_files([group], "memory.max"), ["max"])[0]
        used = next(_files([group], "memory.current"), None)
        if limit != "max" and used is not None:
            stat = next(_files([group], "memory.stat"), [])
            pages = dict(zip(stat[::2], stat[1::2], strict=False))
            left.append(int(limit) - int(used[0]) + int(pages.get("inactive_file", 0)))
    return max(0, min(left)) if left else None


def _files(groups: list[Path], name: str) -> Iterator[list[str]]:
    """Yield the words of each file ``name`` that there is; the root group has none."""
    for group in groups:
        try:
            words = (group / name).read_text().split()
        except OSError:
            continue
        if words:
            yield words
