"""Tools shared by the server's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortolan_runtime.text import Tokenizer
from ortolan_server.kinds import Facts
from ortolan_server.observation import UsageRecord


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


@pytest.fixture(scope="session")
def record() -> UsageRecord:
    """Give the record of a completion with 3 + 2 tokens."""
    return UsageRecord(
        time=1.0,
        request_id="req_1",
        key_id=None,
        dialect="openai",
        model="m",
        is_stream=False,
        status=200,
        ending="complete",
        finish_reasons={"length": 1},
        prompt_tokens=3,
        cached_tokens=0,
        prefilled_tokens=1,
        reused_tokens=0,
        generated_tokens=2,
        delivered_tokens=2,
        first_token_s=0.1,
        duration_s=0.25,
    )
