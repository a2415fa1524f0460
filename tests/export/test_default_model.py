"""The default model goes from its GGUF file to a bundle that knows the capital of France."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from ortolan_export.native import export
from ortolan_runtime.bundle import open_bundle

pytestmark = [pytest.mark.slow, pytest.mark.export]


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_the_default_model_answers_paris(
    precision: Any, smollm2_gguf: Path, tmp_path: Path
) -> None:
    export(smollm2_gguf, tmp_path / "out", precision=precision)
    bundle = open_bundle(tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(bundle.tokenizer_path))
    france = bundle.manifest.golden[0]
    assert france.prompt_tokens == (504, 3575, 282, 4649, 314)
    assert tokenizer.encode("The capital of France is").ids == list(france.prompt_tokens)
    assert tokenizer.decode(list(france.tokens)).startswith(" Paris.")
    assert bundle.manifest.eos_token_ids == (0, 2)
    assert bundle.manifest.context_length == 8192
    assert "<|im_start|>" in (bundle.chat_template or "")
