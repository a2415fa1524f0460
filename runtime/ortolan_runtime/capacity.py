"""How much of a machine's memory the KV cache gets: rows, their length, tokens in all."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortolan_runtime.bundle import Device, KVLayout, Manifest
from ortolan_runtime.cgroup import memory_left_bytes, own_groups
from ortolan_runtime.errors import InvalidParameter

_LEAST_TOKENS = 16
_MIB = 1 << 20
# How many times a step holds the cache of its rows: ``concat`` lays them side by side, and its
# graph returns them once more.
_COPIES: Mapping[KVLayout, int] = {"shared": 1, "static": 1, "concat": 3}


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """Room for ``rows`` sequences of up to ``length`` tokens, but ``tokens`` in all."""

    rows: int
    length: int
    tokens: int


def plan_capacity(
    manifest: Manifest, device: Device, *, slots: int, kv_memory_bytes: int | None
) -> Capacity:
    """Return the room for ``slots`` sequences that run, and for prompts that are kept.

    ``kv_memory_bytes`` bounds it; the default is every slot at full context, at most half of the
    memory that is free, what a step copies of it included. Raises InvalidParameter where that is
    too little.
    """
    if device == "cpu":
        return _taken_as_needed(manifest, slots, kv_memory_bytes)
    free = _free_device_bytes(manifest) if kv_memory_bytes is None else kv_memory_bytes
    return taken_at_once(manifest, slots, free)


def _taken_as_needed(manifest: Manifest, slots: int, limit: int | None) -> Capacity:
    """Return the room on the CPU, where memory is taken page by page, so that rows cost nothing."""
    each = manifest.kv_bytes_per_token
    if limit is None:
        bearable = available_memory_bytes() // (2 * _COPIES[manifest.kv_layout])
        limit = min(slots * manifest.context_length * each, bearable)
    tokens = limit // each
    if tokens < _LEAST_TOKENS:
        needed = _LEAST_TOKENS * each
        raise InvalidParameter("kv_memory", f"must be >= {needed} bytes for this model", limit)
    length = min(manifest.context_length, tokens)
    return Capacity(rows=2 * slots, length=length, tokens=tokens)


def taken_at_once(manifest: Manifest, slots: int, limit: int) -> Capacity:
    """Return the room in a device's memory, which is taken whole: rows times length.

    One row more is the runtime's own. Rows beyond the slots keep prompts that may come again.
    """
    each = manifest.kv_bytes_per_token
    tokens = limit // each
    length = min(manifest.context_length, max(_LEAST_TOKENS, tokens // (slots + 1)))
    rows = min(2 * slots, tokens // manifest.cache_length(length) - 1)
    if rows < slots:
        needed = (slots + 1) * manifest.cache_length(_LEAST_TOKENS) * each
        raise InvalidParameter(
            "kv_memory", f"must be >= {needed} bytes for {slots} slots of this model", limit
        )
    return Capacity(rows=rows, length=length, tokens=rows * length)


def available_memory_bytes() -> int:
    """Return the memory that this process can still have without swapping.

    It is Linux's own estimate, or less where a container has a limit.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            machine = int(line.split()[1]) * 1024
    left = memory_left_bytes(own_groups())
    return machine if left is None else min(machine, left)


def _free_device_bytes(manifest: Manifest) -> int:
    """Return half of what the first GPU has free beside the weights, as nvidia-smi tells it."""
    weights = sum(record.size for record in manifest.files)
    command = ["nvidia-smi", "--id=0", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    told = ""
    if shutil.which(command[0]):
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not told.isdigit():
        raise InvalidParameter(
            "kv_memory",
            "must be given (--kv-memory) where nvidia-smi does not tell the GPU's free memory",
            None,
        )
    return max(0, int(told) * _MIB - weights) // 2
