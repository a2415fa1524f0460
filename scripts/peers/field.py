"""Who takes part: each contender for which the programs are at hand and a model could be made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from peers import contenders, materials, report
from peers.contenders import Contender, Workload
from peers.materials import Materials
from peers.process import ProgramFailed
from peers.weights import Shape


@dataclass(frozen=True, slots=True)
class Setup:
    """What the command line gave: where files go, and where the peers' programs are."""

    files: Materials
    work: Workload
    llama: Path | None
    genai_python: Path | None
    shape: Shape = field(default_factory=Shape)

    @property
    def environment(self) -> dict[str, str]:
        """Return what Ortolan's processes get: a cache of their own."""
        return {"ORTOLAN_CACHE": str(self.files.folder / "cache")}


def enter(setup: Setup) -> tuple[list[Contender], list[str]]:
    """Make the models; return the contenders, and why others could not take part."""
    found: list[Contender] = []
    failures: list[str] = []
    for kind in (_ours, _llama, _genai, _starts):
        try:
            for contender in kind(setup):
                found.append(contender)
        except ProgramFailed as exc:
            failures.append(str(exc))
            print(f"left out: {exc}", file=sys.stderr)
    return found, failures


def _ours(setup: Setup) -> Iterator[Contender]:
    """Yield Ortolan in each precision, and once more with sampling."""
    files, work, environment = setup.files, setup.work, setup.environment
    materials.make_checkpoint(files, setup.shape)
    names = (report.INT8, report.INT4, report.BOTH)
    for precision, name in zip(materials.PRECISIONS, names, strict=True):
        materials.make_bundle(files, precision, environment)
        yield contenders.ortolan(name, files.bundle(precision), work, environment)
    yield contenders.ortolan_sampling(report.SAMPLED, files.bundle("int8"), work, environment)


def _llama(setup: Setup) -> Iterator[Contender]:
    """Yield llama.cpp in each format, if it is at hand."""
    if setup.llama is None:
        return
    materials.make_ggufs(setup.files, setup.shape, setup.llama)
    for format, name in zip(materials.LLAMA_FORMATS, (report.Q8, report.Q4), strict=True):
        yield contenders.llama(name, setup.llama, setup.files.gguf(format), setup.work)


def _genai(setup: Setup) -> Iterator[Contender]:
    """Yield onnxruntime-genai, if it is at hand."""
    if setup.genai_python is None:
        return
    materials.make_genai(setup.files, setup.genai_python)
    yield contenders.genai(report.GENAI, setup.genai_python, setup.files.genai, setup.work)


def _starts(setup: Setup) -> Iterator[Contender]:
    """Yield the two servers that are started anew."""
    files, work = setup.files, setup.work
    yield contenders.ortolan_start(report.SERVER, files.bundle("int8"), work, setup.environment)
    if setup.llama is not None:
        yield contenders.llama_start(report.LLAMA_SERVER, setup.llama, files.gguf("Q8_0"), work)
