"""A stream's text, and the tokens that it comes with, agree at every ending."""

from __future__ import annotations

import os.path
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortolan_runtime.events import TokenScore
from ortolan_runtime.sequence import prompt_pieces
from ortolan_runtime.text import TextStream, Tokenizer

KINDS = ["byte-level", "llama", "gemma", "metaspace"]
MakeTokenizer = Callable[[str], Tokenizer]
Said = tuple[str, tuple[TokenScore, ...]]


def say(stream: TextStream, ids: list[int], silent: int | None = None) -> list[Said]:
    """Push tokens until a stop, and return what each gave; the ending last."""
    said = []
    for id in ids:
        said.append(stream.push(TokenScore(id, "", -1.0)))
        if stream.has_stopped:
            return said
    return [*said, stream.finish(None if silent is None else TokenScore(silent, ""))]


def joined(said: list[Said]) -> str:
    return "".join(text for text, _ in said)


def tokens(said: list[Said]) -> list[TokenScore]:
    return [token for _, given in said for token in given]


def added_text(tokenizer: Tokenizer, prompt: list[int], output: list[int]) -> str:
    before, after = tokenizer.decode(prompt), tokenizer.decode([*prompt, *output])
    return after[len(os.path.commonprefix([before, after])) :]


def cut_at_stop(text: str, stops: list[str], *, include: bool) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        ended = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end if include else end - max(ended)], True
    return text, False


def bytes_as_ids(tokenizer: Tokenizer, text: bytes) -> list[int]:
    """Return the tokens of single bytes."""
    ids = {tokenizer.token_bytes(id): id for id in reversed(range(tokenizer.vocab_size))}
    return [ids[bytes([byte])] for byte in text]


@pytest.mark.parametrize("kind", KINDS)
def test_any_tokens_and_stops_give_the_text_cut_at_the_stop_and_its_tokens(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    pool = bytes_as_ids(tokenizer, "€é\n".encode() + b"\xff")
    pool += tokenizer.encode("xb c", add_special_tokens=False) + [*tokenizer.eos_token_ids]
    pool += [tokenizer.vocab_size + 2]
    ids = st.lists(st.sampled_from(pool), max_size=10)

    @settings(max_examples=250)
    @given(
        prompt=ids,
        output=ids,
        stops=st.lists(st.sampled_from(["x", "b", "xb", " c", "€", "\n", "\ufffd", "é\n"])),
        include=st.booleans(),
    )
    def check(prompt: list[int], output: list[int], stops: list[str], include: bool) -> None:
        stream = TextStream(tokenizer, prompt, stop=stops, include_stop=include)
        said = say(stream, output)
        text, has_stopped = cut_at_stop(
            added_text(tokenizer, prompt, output), stops, include=include
        )
        assert (joined(said), stream.has_stopped) == (text, has_stopped)
        given_out = tokens(said)
        assert "".join(token.text for token in given_out) == text
        count = len(given_out)
        assert [token.id for token in given_out] == output[:count]
        assert has_stopped or count == len(output)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_no_token_comes_out_before_its_text(kind: str, make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(kind)

    @settings(max_examples=100)
    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    def check(output: list[int]) -> None:
        said = say(TextStream(tokenizer, [2], stop=["lo w", "€x", "\n\n"]), output)
        for step in range(len(said) + 1):
            text = joined(said[:step])
            pieces = "".join(token.text for token in tokens(said[:step]))
            assert text.startswith(pieces)

    check()


def _spelt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of single characters, or bytes."""
    return bytes_as_ids(tokenizer, text.encode())


def test_tokens_are_released_with_the_text_that_they_complete(
    make_tokenizer: MakeTokenizer,
) -> None:
    tokenizer = make_tokenizer("byte-level")
    ids = _spelt(tokenizer, "a€b")
    said = say(TextStream(tokenizer, [2]), ids)
    assert [text for text, _ in said] == ["a", "", "", "€", "b", ""]
    assert [[t.text for t in given] for _, given in said] == [
        ["a"],
        [],
        [],
        ["", "", "€"],
        ["b"],
        [],
    ]


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_bytes_that_another_token_ends_keep_their_own_text(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    """Only that token tells that they are all; a stop string in its text cuts it alone."""
    tokenizer = make_tokenizer(kind)
    (word,) = [id for id in range(tokenizer.vocab_size) if tokenizer.token_text(id) == " w"]
    ids = [*_spelt(tokenizer, "€"), word]
    said = say(TextStream(tokenizer, [2]), ids)
    assert [t.text for t in tokens(said)] == ["", "", "€", " w"]
    cut = say(TextStream(tokenizer, [2], stop=[" w"]), ids)
    assert joined(cut) == "€"
    assert [t.id for t in tokens(cut)] == ids[:3]
    assert prompt_pieces(tokenizer, tuple(ids))[2:] == ["€", " w"]


def test_tokens_wait_with_text_that_may_begin_a_stop(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("byte-level")
    said = say(TextStream(tokenizer, [2], stop=["END"]), _spelt(tokenizer, "xENd"))
    assert [text for text, _ in said] == ["x", "", "", "ENd", ""]
    assert [len(given) for _, given in said] == [1, 0, 0, 3, 0]


def test_tokens_of_a_stop_that_is_left_out_are_left_out_too(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("byte-level")
    said = say(TextStream(tokenizer, [2], stop=["END"]), _spelt(tokenizer, "xEND"))
    assert joined(said) == "x"
    assert [token.text for token in tokens(said)] == ["x"]


def test_tokens_of_a_stop_that_is_included_are_included_too(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("byte-level")
    stream = TextStream(tokenizer, [2], stop=["END"], include_stop=True)
    said = say(stream, _spelt(tokenizer, "xEND"))
    assert joined(said) == "xEND"
    assert [token.text for token in tokens(said)] == ["x", "E", "N", "D"]


def test_a_token_that_a_stop_cuts_in_two_keeps_its_first_half(
    make_tokenizer: MakeTokenizer,
) -> None:
    tokenizer = make_tokenizer("byte-level")
    (word,) = tokenizer.encode("Hello", add_special_tokens=False)
    for include, text in ((False, "H"), (True, "Hel")):
        stream = TextStream(tokenizer, [2], stop=["el"], include_stop=include)
        said = say(stream, [word])
        assert joined(said) == text
        assert [(t.id, t.text) for t in tokens(said)] == [(word, text)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_met_by_the_first_token_leaves_no_text_and_no_token(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    ids = tokenizer.encode("x", add_special_tokens=False)[-1:]
    stream = TextStream(tokenizer, ids, stop=["x"])
    assert stream.push(TokenScore(ids[0], "")) == ("", ())
    assert stream.has_stopped


@pytest.mark.parametrize("kind", KINDS)
def test_an_end_inside_a_character_flushes_it_with_its_tokens(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    prompt = tokenizer.encode("x", add_special_tokens=False)[-1:]
    said = say(TextStream(tokenizer, prompt), [*prompt, *bytes_as_ids(tokenizer, b"\xc3")])
    assert joined(said) == "x\ufffd"
    assert [token.text for token in tokens(said)] == ["x", "\ufffd"]


def test_an_end_inside_a_token_of_a_letter_and_half_a_character_keeps_both(
    make_tokenizer: MakeTokenizer,
) -> None:
    # " \xe2\x80" is one token of GPT-2's; here " \xe6\xbc" of " 漢".
    tokenizer = make_tokenizer("byte-level")
    found = [
        id
        for id in range(tokenizer.vocab_size)
        if (raw := tokenizer.token_bytes(id)) and raw.startswith(b" ") and raw[-1] >= 0x80
    ]
    mixed = next(id for id in found if tokenizer.decode([id]).endswith("\ufffd"))
    said = say(TextStream(tokenizer, [2]), [mixed])
    assert joined(said) == " \ufffd"
    assert [(t.id, t.text) for t in tokens(said)] == [(mixed, " \ufffd")]


def test_a_silent_last_token_comes_last_and_says_nothing(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("byte-level")
    eos = tokenizer.eos_token_ids[0]
    ids = _spelt(tokenizer, "EN")
    said = say(TextStream(tokenizer, [2], stop=["END"]), ids, silent=eos)
    assert joined(said) == "EN"
    assert [(t.id, t.text) for t in tokens(said)] == [(ids[0], "E"), (ids[1], "N"), (eos, "")]


def test_a_token_keeps_its_scores(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("byte-level")
    stream = TextStream(tokenizer, [2])
    _, given = stream.push(TokenScore(_spelt(tokenizer, "x")[0], "", -0.5, ((7, -0.25),)))
    assert given[0].logprob == -0.5
    assert given[0].top == ((7, -0.25),)
