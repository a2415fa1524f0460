"""Servers that the contract is checked against, each a process with a real bundle.

- ``glass``: a small real model that writes English, context 128.
- ``plain``: a scripted model with a byte-level tokenizer and no BOS, context 256; it babbles.
- ``pieces``: a scripted model with a SentencePiece-like tokenizer and a BOS.
- ``actor``: a scripted model that says fixed things after prompts of certain lengths (``LINES``).
- ``speaker``: a scripted model for the golden pairs: it knows the capital of France.
- ``keyed``: ``plain`` behind a key, with an origin that browsers may call from.
- ``strict``: ``plain`` under ``--strict``.
- ``narrow``: ``plain`` with one slot, a queue of two and no page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from scripted import (
    LIKELY,
    by_position,
    by_token,
    byte_ids,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    write_bundle,
)
from serving import Server, serving

WORDS = ("hello", " world", "\n\n", "abc", "return ", " the")
EOS, BOS, SECOND_EOS = 256, 257, 258
KEY = "sk-tést-7"


@pytest.fixture(scope="session")
def glass(glass_bundle: Path) -> Iterator[Server]:
    """Give a server of glassllm's English model."""
    with serving(glass_bundle) as server:
        yield server


@pytest.fixture(scope="session")
def plain_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a bundle that babbles: the next token depends on the last one alone."""
    tokenizer = byte_level_tokenizer(*WORDS)
    table = by_token(tokenizer.get_vocab_size(), {})
    table[:, [EOS, BOS, SECOND_EOS]] = -50.0  # never end by chance
    folder = tmp_path_factory.mktemp("plain") / "plain"
    return write_bundle(folder, tokenizer, token_table=table, eos=[EOS], name="plain")


@pytest.fixture(scope="session")
def plain(plain_bundle: Path) -> Iterator[Server]:
    """Give a server of the babbling model."""
    with serving(plain_bundle) as server:
        yield server


@pytest.fixture(scope="session")
def strict(plain_bundle: Path) -> Iterator[Server]:
    """Give a strict server."""
    with serving(plain_bundle, strict=True) as server:
        yield server


@pytest.fixture(scope="session")
def narrow(plain_bundle: Path) -> Iterator[Server]:
    """Give a server with one slot, a queue of two and no page."""
    with serving(plain_bundle, options={"slots": 1, "queue_limit": 2}, page=False) as server:
        yield server


@pytest.fixture(scope="session")
def keyed(plain_bundle: Path) -> Iterator[Server]:
    """Give a server with a key; its client sends the key."""
    headers = {"authorization": f"Bearer {KEY}".encode()}
    origins = ["http://localhost:3000"]
    with serving(plain_bundle, headers=headers, api_key=KEY, cors_origins=origins) as server:
        yield server


@pytest.fixture(scope="session")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give a server with SentencePiece's ways: byte fallback, a BOS, a space before words."""
    tokenizer = sentencepiece_tokenizer(" the", " The", " quick", " fox", "ing", " Hi")
    table = by_token(tokenizer.get_vocab_size(), {})
    table[:, :3] = -50.0
    folder = tmp_path_factory.mktemp("pieces") / "pieces"
    write_bundle(folder, tokenizer, token_table=table, eos=[2], bos=1, name="pieces")
    with serving(folder) as server:
        yield server


EMOJI = "👩🏽‍🚀漢字é"
COUNTING = "1 2 3 4 5 6"

# What the actor says after a prompt of that many tokens.
LINES = {
    1: [*EMOJI.encode(), "hello", EOS],
    40: [*COUNTING.encode(), EOS],
    60: ["hello", " world", SECOND_EOS],
    70: ["hello", BOS, "abc", EOS],
    80: ["hello", " world", -1],
    100: [0xBF, *b"ok", 0xE6, 0xBC, *b"ok", EOS],
    120: ["\n\n", "abc", EOS],
    140: [*"a\u2028b\u2029c\x85d".encode(), EOS],
}


@pytest.fixture(scope="session")
def actor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give a server whose model says ``LINES``; it ends at three ids."""
    tokenizer = byte_level_tokenizer(*WORDS)
    vocab = tokenizer.get_vocab_size()
    scripts = {
        length: [_id_of(tokenizer, token) for token in line] for length, line in LINES.items()
    }
    folder = tmp_path_factory.mktemp("actor") / "actor"
    write_bundle(
        folder,
        tokenizer,
        token_table=by_token(vocab, {}),
        position_table=by_position(vocab, scripts),
        eos=[EOS, SECOND_EOS, BOS],
        name="actor",
    )
    with serving(folder) as server:
        yield server


def _id_of(tokenizer: Tokenizer, token: int | str) -> int:
    """Return the id of a byte or a word; ids that are none stay as they are."""
    if isinstance(token, str):
        return tokenizer.encode(token).ids[0]
    if token < 0 or token >= 256:
        return token
    return byte_ids(tokenizer)[token]


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give a server that knows the capital of France, and doubts it a little.

    It expects "The capital of France is", then " Paris" or " Lyon", then "." or "!".
    """
    words = ("The", " capital", " of", " France", " is", " Paris", " Lyon", "user", "assistant")
    tokenizer = byte_level_tokenizer(*words)
    vocab = tokenizer.get_vocab_size()
    table = np.full((16, vocab), -9.0, np.float32)
    expected = [{" capital": 2}, {" of": 4}, {" France": 1}, {" is": 3}]
    for position, likely in enumerate([*expected, {" Paris": 3, " Lyon": 1}, {".": 2, "!": 1}]):
        for word, logit in likely.items():
            table[position, _id_of(tokenizer, word)] = logit
    table[6:, EOS] = LIKELY
    folder = tmp_path_factory.mktemp("speaker") / "speaker"
    write_bundle(
        folder,
        tokenizer,
        token_table=np.zeros((vocab, vocab), np.float32),
        position_table=table,
        eos=[EOS],
        name="speaker",
        chat_template="{% for message in messages %}{{ message.content }}{% endfor %}",
    )
    with serving(folder) as server:
        yield server
