"""Tools of the deployment tests: a model that talks for seconds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from scripted import by_token, byte_level_tokenizer, readable, write_bundle


@pytest.fixture(scope="session")
def babbling_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a bundle that never ends by itself, context 65,536: it talks for seconds."""
    tokenizer = byte_level_tokenizer("hello", " world")
    table = readable(by_token(tokenizer.get_vocab_size(), {}), tokenizer)
    folder = tmp_path_factory.mktemp("babbling") / "babbling"
    return write_bundle(
        folder, tokenizer, token_table=table, context_length=1 << 16, name="babbling"
    )
