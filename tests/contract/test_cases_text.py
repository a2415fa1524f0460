"""Known faults of other servers in turning tokens into text (cases A-UTF-* and A-TOK-*)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from scripted import by_token, byte_level_tokenizer, write_bundle
from serving import Server, joined, serving

EMOJI = "👩🏽‍🚀漢字é"
REPLACEMENT = "\ufffd"


def tokenizer_of(bundle: Path) -> Tokenizer:
    """Return the tokenizer that a bundle holds."""
    return Tokenizer.from_file(str(bundle / "tokenizer.json"))


def test_characters_split_over_tokens_stay_whole_in_a_stream(actor: Server) -> None:
    """A-UTF-01."""
    chunks = actor.stream("x", max_tokens=60)
    assert joined(chunks) == actor.text("x", max_tokens=60) == f"{EMOJI}hello"
    assert all(REPLACEMENT not in chunk["choices"][0]["text"] for chunk in chunks)


@pytest.mark.parametrize("length", range(1, 24))
def test_an_end_inside_a_character_flushes_its_bytes_once(actor: Server, length: int) -> None:
    """A-UTF-01, max_tokens at every byte."""
    want = EMOJI.encode()[:length].decode(errors="replace")
    chunks = actor.stream("x", max_tokens=length)
    assert joined(chunks) == actor.text("x", max_tokens=length) == want
    assert all(REPLACEMENT not in chunk["choices"][0]["text"] for chunk in chunks[:-1])


def test_bytes_that_form_no_character_are_shown_and_later_text_is_intact(actor: Server) -> None:
    """A-UTF-02, scripted."""
    want = bytes([0xBF, *b"ok", 0xE6, 0xBC, *b"ok"]).decode(errors="replace")
    chunks = actor.stream("x" * 100, max_tokens=20)
    assert joined(chunks) == actor.text("x" * 100, max_tokens=20) == want


def test_continuation_bytes_alone_do_not_fail_a_stream(plain: Server) -> None:
    """A-UTF-02, a bias towards a continuation byte."""
    ids = plain.post("/tokenize", {"prompt": "é"}).json()["tokens"]
    fields = {"max_tokens": 8, "logit_bias": {str(ids[1]): 100}}
    chunks = plain.stream("x", **fields, stream_options={"include_usage": True})
    assert joined(chunks) == REPLACEMENT * 8
    assert chunks[-1]["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("server", ["plain", "pieces"])
def test_hot_random_text_never_fails_and_streams_as_it_is_decoded(
    server: str, request: pytest.FixtureRequest
) -> None:
    """A-UTF-02, 25 seeds each at temperature 2."""
    served: Server = request.getfixturevalue(server)
    for seed in range(25):
        fields = {"max_tokens": 100, "temperature": 2, "seed": seed}
        plain = served.complete("x", **fields, return_token_ids=True)["choices"][0]
        chunks = served.stream("x", **fields)
        both = plain["prompt_token_ids"] + plain["token_ids"]
        whole = decoded(served, both).removeprefix(decoded(served, plain["prompt_token_ids"]))
        assert joined(chunks) == plain["text"] == whole


@pytest.mark.parametrize("prompt", ["The quick", "The quick ", "The\n", "The quick é"])
def test_the_first_space_of_a_continuation_is_kept(pieces: Server, prompt: str) -> None:
    """A-UTF-03."""
    choice = pieces.complete(prompt, max_tokens=20, return_token_ids=True)["choices"][0]
    ids = choice["prompt_token_ids"]
    before, after = decoded(pieces, ids), decoded(pieces, ids + choice["token_ids"])
    assert choice["text"] == after.removeprefix(before)
    assert joined(pieces.stream(prompt, max_tokens=20)) == choice["text"]


def test_a_forced_word_after_a_prompt_begins_with_its_space(pieces: Server) -> None:
    """A-UTF-03, by a bias."""
    quick = pieces.post("/tokenize", {"prompt": "quick", "add_special_tokens": False}).json()
    (id,) = quick["tokens"]
    bias = {"logit_bias": {str(id): 100}, "max_tokens": 2}
    assert pieces.text("The", **bias) == " quick quick"
    assert joined(pieces.stream("The", **bias)) == " quick quick"


def test_a_prompt_that_begins_with_bos_gets_no_second_one(pieces: Server) -> None:
    """A-TOK-01."""
    with_bos = pieces.complete("<s>[INST] Hi [/INST]", max_tokens=1, echo=True, logprobs=1)
    without = pieces.complete(" [INST] Hi [/INST]", max_tokens=1)
    ids = pieces.post("/tokenize", {"prompt": "<s>[INST] Hi [/INST]"}).json()["tokens"]
    assert ids[0] == 1
    assert ids[1] != 1
    assert with_bos["usage"]["prompt_tokens"] == len(ids)
    assert with_bos["choices"][0]["text"].startswith("<s>[INST] Hi [/INST]")
    assert abs(without["usage"]["prompt_tokens"] - len(ids)) <= 1


def test_a_prompt_of_ids_is_taken_literally(pieces: Server) -> None:
    """A-TOK-01, ids with and without BOS."""
    ids = pieces.post("/tokenize", {"prompt": "Hi the fox"}).json()["tokens"]
    for prompt in (ids, ids[1:]):
        document = pieces.complete(prompt, max_tokens=1, return_token_ids=True)
        assert document["usage"]["prompt_tokens"] == len(prompt)
        assert document["choices"][0]["prompt_token_ids"] == prompt


@pytest.mark.parametrize(
    ("length", "text", "tokens"),
    [(1, f"{EMOJI}hello", 25), (60, "hello world", 3), (70, "hello", 2)],
)
def test_every_id_that_ends_a_text_is_heeded(
    actor: Server, length: int, text: str, tokens: int
) -> None:
    """A-TOK-02: the end is counted in usage and shown in no text."""
    document = actor.complete("x" * length, max_tokens=50)
    assert document["choices"][0]["text"] == text
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["usage"]["completion_tokens"] == tokens
    chunks = actor.stream("x" * length, max_tokens=50, stream_options={"include_usage": True})
    assert joined(chunks) == text
    assert chunks[-1]["usage"]["completion_tokens"] == tokens


def test_stored_truncation_and_padding_are_switched_off(tmp_path: Path) -> None:
    """A-TOK-03."""
    tokenizer = byte_level_tokenizer()
    tokenizer.enable_truncation(max_length=8)
    tokenizer.enable_padding(length=16)
    assert json.loads(tokenizer.to_str())["truncation"]
    vocab = tokenizer.get_vocab_size()
    bundle = write_bundle(tmp_path / "bundle", tokenizer, token_table=by_token(vocab, {}))
    with serving(bundle) as server:
        for prompt in ("abc", "abcdefghijklmnopqrstuvwxyz1234"):
            document = server.complete(prompt, max_tokens=1, echo=True)
            assert document["usage"]["prompt_tokens"] == len(prompt)
            assert document["choices"][0]["text"].startswith(prompt)


def decoded(server: Server, ids: list[int]) -> str:
    """Return the text of ``ids`` without special tokens."""
    served = server.complete(ids, max_tokens=0, echo=True)
    text: str = served["choices"][0]["text"]
    return text
