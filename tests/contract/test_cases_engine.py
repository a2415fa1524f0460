"""Known faults of runtimes and exporters (cases A-ORT-*, A-EXP-*), seen from outside.

The parts' own tests look closer: tests/runtime and tests/export.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest

from figures import figures
from ortolan_runtime.engine import Engine, EngineOptions
from ortolan_runtime.errors import ProviderError
from serving import Server

LARGE_BYTES = 1024


def test_rows_of_unequal_length_give_what_each_gives_alone(glass: Server) -> None:
    """A-ORT-01: batches of 2 to 8 rows, lengths up to half the context."""
    draw = random.Random(3)
    text = "The Professor was a little green into the table, and the March Hare said nothing. " * 2
    for rows in range(2, 9):
        prompts = [text[: draw.randrange(1, 140)] for _ in range(rows)]
        batched = [c["text"] for c in glass.complete(prompts, max_tokens=16)["choices"]]
        assert batched == [glass.text(prompt, max_tokens=16) for prompt in prompts]


@pytest.mark.slow
def test_memory_reaches_a_plateau(glass: Server) -> None:
    """A-ORT-02: requests of any length do not add up."""
    draw = random.Random(4)

    def some(count: int) -> float:
        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(lambda n: glass.text([9] * n, max_tokens=128 - n), lengths(count)):
                pass
        return figures(glass)["process_resident_memory_bytes"]

    def lengths(count: int) -> list[int]:
        return [draw.randrange(1, 120) for _ in range(count)]

    some(20)
    early = some(100)
    assert some(200) <= 1.1 * early


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="the devices may be there")
@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_device_that_is_not_there_is_an_error_and_no_fallback(
    glass_bundle: Path, device: str
) -> None:
    """A-ORT-03, on a machine without one."""
    options = EngineOptions(device=device)  # type: ignore[arg-type]
    with pytest.raises(ProviderError, match=f"(?i){device}") as caught:
        Engine.open(glass_bundle, options)
    assert len(str(caught.value).splitlines()) == 1


def test_weights_are_outside_the_protobuf_whatever_their_size(glass_bundle: Path) -> None:
    """A-EXP-01: so the limit of 2 GB never applies."""
    graph = onnx.load(str(glass_bundle / "model.onnx"), load_external_data=False).graph
    outside = [t for t in graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    assert outside
    inside = [t.ByteSize() for t in graph.initializer if t not in outside]
    assert max(inside, default=0) <= LARGE_BYTES


def test_a_tied_matrix_is_written_once(glass_bundle_fp32: Path, glass_checkpoint: Path) -> None:
    """A-EXP-02."""
    weights = 2 * (glass_checkpoint / "model.safetensors").stat().st_size  # 16 bits there
    written = sum(file.stat().st_size for file in glass_bundle_fp32.glob("model.onnx*"))
    assert written <= 1.1 * weights


@pytest.mark.parametrize("type_name", ["made_up", "t5"])
def test_an_architecture_that_is_not_known_is_refused_at_once(
    glass_checkpoint: Path, tmp_path: Path, type_name: str
) -> None:
    """A-EXP-03: by its type, with nothing written."""
    source = tmp_path / "source"
    shutil.copytree(glass_checkpoint, source)
    config = json.loads((source / "config.json").read_text()) | {"model_type": type_name}
    (source / "config.json").write_text(json.dumps(config))
    started = time.monotonic()
    command = [sys.executable, "-m", "ortolan_server", "export", str(source), str(tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert time.monotonic() - started < 10
    assert run.returncode != 0
    assert type_name in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "out").exists()
