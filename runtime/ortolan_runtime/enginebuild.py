"""Builds TensorRT's engines of a bundle ahead, so that the first request does not wait minutes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ortolan_runtime.bundle import Bundle, EnginePlan
from ortolan_runtime.errors import BundleError
from ortolan_runtime.model import Model
from ortolan_runtime.providers import default_threads
from ortolan_runtime.tensorrt import engine_folder, tensorrt_options

# An engine is built for the ranges of its profile, whatever runs first; so few rows will do.
_ROWS = 2


def build_engines(bundle: Bundle) -> Sequence[Path]:
    """Build the engines of a bundle and return the files in which they are kept.

    Raises BundleError for a bundle that was not made for TensorRT, and ProviderError.
    """
    manifest, folder = bundle.manifest, engine_folder(os.environ)
    if manifest.engines is None:
        raise BundleError(
            f"the bundle must be made for tensorrt, got {manifest.target}; "
            "make it with `ortolan export --for tensorrt`"
        )
    folder.mkdir(parents=True, exist_ok=True)
    model = Model(
        bundle,
        rows=_ROWS,
        length=manifest.context_length,
        threads=default_threads(),
        device="tensorrt",
        provider_options=tensorrt_options(manifest, manifest.engines, folder),
    )
    run_profiles(model, manifest.engines)
    return sorted(path for path in folder.iterdir() if path.is_file())


def run_profiles(model: Model, plan: EnginePlan) -> None:
    """Run a step of each profile: one that decodes, and a chunk as long as it may be."""
    for profile in plan.profiles:
        count = min(profile.tokens[-1], model.length)
        if count == 1:
            model.decode(np.zeros(_ROWS, np.int64), np.zeros(_ROWS, np.int32))
        else:
            model.prefill(0, np.zeros(count, np.int64), 0, np.array([count - 1]))
