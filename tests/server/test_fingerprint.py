"""The system fingerprint says when bits may depend on company."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortolan_runtime.bundle import open_bundle
from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_server.facts import fingerprint_of


@pytest.mark.parametrize(
    ("options", "end"),
    [
        (EngineOptions(), ""),
        (EngineOptions(speculate=True), "-speculate"),
        (EngineOptions(relaxed=True, speculate=True), "-speculate-relaxed"),
    ],
)
def test_the_fingerprint_names_each_liberty(
    glass_bundle: Path, options: EngineOptions, end: str
) -> None:
    manifest = open_bundle(glass_bundle).manifest
    plain = fingerprint_of(manifest, "cpu", ())
    assert fingerprint_of(manifest, "cpu", options.liberties) == plain + end


def test_another_device_has_another_fingerprint(glass_bundle_cuda: Path) -> None:
    manifest = open_bundle(glass_bundle_cuda).manifest
    assert fingerprint_of(manifest, "cpu", ()) != fingerprint_of(manifest, "cuda", ())


def test_an_engine_knows_its_liberties(glass_bundle: Path) -> None:
    with Engine.open(glass_bundle, EngineOptions(slots=1, threads=1, relaxed=True)) as engine:
        assert engine.liberties == ("relaxed",)
