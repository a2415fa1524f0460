"""Names, maps and offsets of scored tokens."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ortolan_runtime.events import TokenScore
from ortolan_runtime.text import Tokenizer
from ortolan_server.logprobs import LOWEST, completions_logprobs, shown_logprob, top_map
from ortolan_server.reply import Piece, PromptPart
from ortolan_server.request import CompletionRequest
from scripted import sentencepiece_tokenizer


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-1.5, -1.5),
        (0.0, 0.0),
        (1e-7, 0.0),
        (-math.inf, LOWEST),
        (math.nan, LOWEST),
        (-1e6, LOWEST),
    ],
)
def test_no_infinity_and_no_nan_is_shown(value: float, shown: float) -> None:
    """JSON has neither."""
    assert shown_logprob(value) == shown


def test_two_ids_with_one_name_stay_two_entries(tmp_path: Path) -> None:
    """The letter a and the byte of the letter a: the second is named by its bytes."""
    path = tmp_path / "tokenizer.json"
    sentencepiece_tokenizer().save(str(path))
    tokenizer = Tokenizer(path, bos_token_id=1, eos_token_ids=(2,))
    byte, letter = 3 + ord("a"), 259 + 1
    assert tokenizer.token_text(byte) == tokenizer.token_text(letter) == "a"
    score = TokenScore(letter, "a", -1.0, ((letter, -1.0), (byte, -2.0)))
    assert top_map(score, tokenizer, 2) == {"a": -1.0, "bytes:\\x61": -2.0}
    other = TokenScore(byte, "a", -2.0, ((letter, -1.0),))
    assert top_map(other, tokenizer, 1) == {"bytes:\\x61": -1.0, "a": -2.0}


def test_a_token_that_is_no_text_alone_is_named_by_its_bytes(tokenizer: Tokenizer) -> None:
    """And the sampled token is always in the map."""
    first, second = tokenizer.encode("é")
    score = TokenScore(first, "", -1.0, ((second, -0.5),))
    assert top_map(score, tokenizer, 1) == {"bytes:\\xa9": -0.5, "bytes:\\xc3": -1.0}
    assert top_map(score, tokenizer, 0) == {"bytes:\\xc3": -1.0}


def test_offsets_begin_after_a_prompt_that_is_not_shown(tokenizer: Tokenizer) -> None:
    """And at 0 with one that is."""
    a, b = tokenizer.encode("a")[0], tokenizer.encode("b")[0]
    prompt = PromptPart(
        text="ab", ids=(a, b), scores=(TokenScore(a, "a"), TokenScore(b, "b", -2.0))
    )
    tokens = (TokenScore(a, "a", -1.0), TokenScore(b, "b", -1.0))
    piece = Piece(index=0, prompt=prompt, text="ab", tokens=tokens, offset=5, is_first=True)
    request = CompletionRequest(prompts=("ab",), logprobs=0)
    hidden = completions_logprobs(piece, request, tokenizer, with_prompt=False)
    assert hidden is not None
    assert hidden["text_offset"] == [7, 8]
    shown = completions_logprobs(piece, request, tokenizer, with_prompt=True)
    assert shown is not None
    assert shown["text_offset"] == [0, 1, 7, 8]
    assert shown["token_logprobs"][0] is None
    assert shown["top_logprobs"][0] is None


def test_offsets_follow_a_prompt_that_the_tokenizer_rewrites(tokenizer: Tokenizer) -> None:
    """Such as letters with accents of their own, which many make into one character."""
    first, second = tokenizer.encode("é")
    b = tokenizer.encode("b")[0]
    scores = [TokenScore(first, ""), TokenScore(second, "é", -1.0), TokenScore(b, "b", -1.0)]
    prompt = PromptPart(text="e\u0301b", ids=(first, second, b), scores=tuple(scores))
    piece = Piece(index=0, prompt=prompt, tokens=(TokenScore(b, "b", -1.0),), is_first=True)
    request = CompletionRequest(prompts=(prompt.text,), logprobs=0)
    shown = completions_logprobs(piece, request, tokenizer, with_prompt=True)
    assert shown is not None
    assert shown["text_offset"] == [0, 0, 2, 3]


def test_nothing_is_shown_when_nothing_was_asked_for(tokenizer: Tokenizer) -> None:
    """Null, not empty arrays."""
    piece = Piece(index=0, prompt=PromptPart(text="", ids=(1,)))
    request = CompletionRequest(prompts=("",))
    assert completions_logprobs(piece, request, tokenizer, with_prompt=True) is None
