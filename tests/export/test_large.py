"""The export of a large model takes memory by its largest parts, not by its size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from checkpoints import write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.export]

# Llama 3.2's smaller one.
SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
}
# The peak is read from /proc: that of getrusage would include the process that this one came from.
EXPORT = """
import re, sys
from pathlib import Path
from ortolan_export.native import export
export(Path(sys.argv[1]), Path(sys.argv[2]), precision="int8")
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def test_a_model_of_1_2_billion_parameters_becomes_int8_within_4_gib(tmp_path: Path) -> None:
    """Its weights alone are 4.9 GB in float32."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        source = write_checkpoint(tmp_path / "large", "llama", **SHAPE)
    finally:
        torch.set_default_dtype(torch.float32)
    command = [sys.executable, "-c", EXPORT, str(source), str(tmp_path / "int8")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout.splitlines()[-1]) < 4 << 20  # KiB
