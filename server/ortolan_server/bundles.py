"""Which bundles are served, and what share of the machine each of their engines has.

Weights lie in memory once a bundle. The KV caches share what one alone would have: each gets an
equal part, or less where it cannot use as much, which is then left to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ortolan_runtime.bundle import MANIFEST_NAME, Bundle
from ortolan_runtime.capacity import available_memory_bytes
from ortolan_runtime.engine import EngineOptions
from ortolan_runtime.errors import BundleError, InvalidParameter
from ortolan_runtime.providers import choose_device, default_threads


class NamedPath(msgspec.Struct, frozen=True):
    """A bundle's folder, and the name that it is served under; None is its own."""

    path: Path
    name: str | None = None


def named_paths(words: Sequence[str]) -> list[NamedPath]:
    """Return the bundles that ``words`` name: each a folder, NAME=FOLDER, or a folder of bundles.

    Those of one folder come in the order of their names. Raises BundleError.
    """
    return [named for word in words for named in _named_paths(word)]


def check_names(names: Sequence[str]) -> None:
    """Check that every model has a name of its own. Raises InvalidParameter."""
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidParameter(
                "bundle", "must each have a name of its own, as in NAME=BUNDLE", name
            )


def check_only_name(name: str | None, bundles: Sequence[object]) -> None:
    """Check that a name that is not any bundle's own is for one alone. Raises InvalidParameter."""
    if name is not None and len(bundles) > 1:
        raise InvalidParameter(
            "model_name", "must not be given with several bundles; name each as NAME=BUNDLE", name
        )


def shared_options(bundles: Sequence[Bundle], options: EngineOptions) -> list[EngineOptions]:
    """Return what each engine of ``bundles`` may use, of ``options`` for all of them together.

    One bundle alone has everything. Threads that are asked for are each engine's own. Raises
    BundleError, and InvalidParameter where the memory must be told.
    """
    if len(bundles) == 1:
        return [options]
    devices = {choose_device(bundle.manifest, options.device) for bundle in bundles}
    if devices != {"cpu"} and options.kv_memory_bytes is None:
        raise InvalidParameter(
            "kv_memory", "must be given (--kv-memory) where several bundles share a GPU", None
        )
    memory = options.kv_memory_bytes or available_memory_bytes() // 2
    wanted = [
        options.slots * b.manifest.context_length * b.manifest.kv_bytes_per_token for b in bundles
    ]
    threads = options.threads or max(1, default_threads() // len(bundles))
    return [
        msgspec.structs.replace(options, kv_memory_bytes=share, threads=threads)
        for share in shares(memory, wanted)
    ]


def shares(total: int, wanted: Sequence[int]) -> list[int]:
    """Return equal parts of ``total``, none above what is wanted; the rest goes to the others."""
    given = dict.fromkeys(range(len(wanted)), 0)
    left, unserved = total, sorted(given, key=lambda index: wanted[index])
    for count, index in enumerate(unserved):
        given[index] = min(wanted[index], left // (len(unserved) - count))
        left -= given[index]
    return list(given.values())


def _named_paths(word: str) -> list[NamedPath]:
    name, equals, path = word.partition("=")
    if equals and not Path(word).exists():
        if not name or not path:
            raise BundleError(f"a bundle must be FOLDER or NAME=FOLDER, got {word!r}")
        return [NamedPath(Path(path), name)]
    folder = Path(word)
    if not folder.is_dir() or (folder / MANIFEST_NAME).exists():
        return [NamedPath(folder)]
    inside = sorted(file.parent for file in folder.glob(f"*/{MANIFEST_NAME}"))
    # A folder that is empty of bundles is told of as any folder without a manifest is.
    return [NamedPath(path) for path in inside] or [NamedPath(folder)]
