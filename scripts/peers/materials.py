"""Makes, once, the model files that the contenders read."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from peers.formats import write_gguf, write_huggingface
from peers.process import Command, run
from peers.weights import Shape

_TIMEOUT_S = 1800.0
LLAMA_FORMATS = ("Q8_0", "Q4_0")
PRECISIONS = ("int8", "int4", "int8+int4")


@dataclass(frozen=True, slots=True)
class Materials:
    """Where everything lies in the work folder."""

    folder: Path

    @property
    def huggingface(self) -> Path:
        """Return the checkpoint that Ortolan and onnxruntime-genai are exported from."""
        return self.folder / "huggingface"

    @property
    def genai(self) -> Path:
        """Return the folder of onnxruntime-genai's model."""
        return self.folder / "genai-int4"

    def bundle(self, precision: str) -> Path:
        """Return Ortolan's bundle in one precision."""
        return self.folder / f"ortolan-{precision}"

    def gguf(self, format: str) -> Path:
        """Return llama.cpp's file in one format."""
        return self.folder / f"{format}.gguf"


def make_checkpoint(materials: Materials, shape: Shape) -> None:
    """Write the Hugging Face directory."""
    _once(materials.huggingface, lambda path: write_huggingface(path, shape))


def make_bundle(materials: Materials, precision: str, environment: Mapping[str, str]) -> None:
    """Export Ortolan's bundle. Raises ProgramFailed."""
    command: Command = [sys.executable, "-m", "ortolan_server", "export", materials.huggingface]

    def export(path: Path) -> None:
        run(
            [*command, path, "--precision", precision, "--name", f"random-{precision}"],
            timeout_s=_TIMEOUT_S,
            environment=environment,
        )

    _once(materials.bundle(precision), export)


def make_ggufs(materials: Materials, shape: Shape, programs: Path) -> None:
    """Write llama.cpp's files, quantised by its own program. Raises ProgramFailed."""
    missing = [name for name in LLAMA_FORMATS if not materials.gguf(name).exists()]
    if not missing:
        return
    whole = materials.gguf("F32")
    _once(whole, lambda path: write_gguf(path, shape))
    quantize = programs / "llama-quantize"
    for name in missing:

        def make(path: Path, name: str = name) -> None:
            run([quantize, whole, path, name], timeout_s=_TIMEOUT_S)

        _once(materials.gguf(name), make)
    whole.unlink()  # 2 GB that nobody reads again


def make_genai(materials: Materials, python: Path) -> None:
    """Build onnxruntime-genai's model with its own builder. Raises ProgramFailed."""
    cache = materials.folder / "genai-cache"
    command: Command = [
        *(python, "-m", "onnxruntime_genai.models.builder", "-i", materials.huggingface),
        *("-p", "int4", "-e", "cpu", "-c", cache, "--extra_options", "hf_token=false", "-o"),
    ]

    def build(path: Path) -> None:
        run([*command, path], timeout_s=_TIMEOUT_S, environment={"PYTHONPATH": ""})

    _once(materials.genai, build)
    shutil.rmtree(cache, ignore_errors=True)


def _once(path: Path, make: Callable[[Path], object]) -> None:
    """Call ``make`` unless ``path`` exists, which appears only when it is complete."""
    if path.exists():
        return
    print(f"making {path} ...", file=sys.stderr, flush=True)
    unfinished = path.with_name(f"unfinished-{path.name}")
    if unfinished.is_dir():
        shutil.rmtree(unfinished)
    unfinished.unlink(missing_ok=True)
    make(unfinished)
    unfinished.rename(path)
