"""Tools shared by the server's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from ortolan_runtime.text import Tokenizer
from ortolan_server.kinds import Facts
from scripted import write_babbling_bundle


@pytest.fixture(scope="session")
def babbling_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a bundle that never ends by itself, context 65,536: it talks for seconds."""
    return write_babbling_bundle(tmp_path_factory.mktemp("babbling") / "babbling")


@pytest.fixture(scope="session")
def tokenizer(babbling_bundle: Path) -> Tokenizer:
    """Give a byte-level tokenizer with the words `hello` and ` world`, no BOS."""
    path = babbling_bundle / "tokenizer.json"
    return Tokenizer(path, bos_token_id=None, eos_token_ids=(256,))


@pytest.fixture
def facts(tokenizer: Tokenizer) -> Facts:
    """Give facts of a model with that tokenizer and a context of 100."""
    return Facts(
        model="m", vocab_size=tokenizer.vocab_size, context_length=100, tokenizer=tokenizer
    )
