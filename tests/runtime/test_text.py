"""Decoding token by token says what decoding everything at once says."""

from __future__ import annotations

import os.path
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortolan_runtime.errors import BundleError, InvalidParameter
from ortolan_runtime.sequence import prompt_pieces
from ortolan_runtime.text import IncrementalDecoder, Tokenizer

KINDS = ["byte-level", "llama", "gemma", "metaspace"]
MakeTokenizer = Callable[[str], Tokenizer]

# Prompts and outputs as numbers that are taken modulo the vocabulary.
numbers = st.lists(st.integers(0, 10_000), max_size=30)
TEXTS = ["Hello world", " leading", "a\nb", "é漢字👩🏽‍🚀", "\n", "x  y", "Zürich — 5 €"]


def as_ids(tokenizer: Tokenizer, values: list[int]) -> list[int]:
    """Return ids, with a few beyond the vocabulary as a model with padded logits may give them."""
    return [value % (tokenizer.vocab_size + 3) for value in values]


def added_text(tokenizer: Tokenizer, prompt: list[int], output: list[int], *, skip: bool) -> str:
    """Return what decoding ``prompt`` and ``output`` says beyond what decoding ``prompt`` says."""
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    after = tokenizer.decode([*prompt, *output], skip_special_tokens=skip)
    return after[len(os.path.commonprefix([before, after])) :]


def decoded(tokenizer: Tokenizer, prompt: list[int], output: list[int], *, skip: bool) -> list[str]:
    """Return the pieces that a decoder gives, the flush last."""
    decoder = IncrementalDecoder(tokenizer, prompt, skip_special_tokens=skip)
    return [*(decoder.push(id) for id in output), decoder.flush()]


def byte_tokens(tokenizer: Tokenizer) -> dict[int, int]:
    """Return the id of each byte's own token."""
    found = {}
    for id in range(tokenizer.vocab_size):
        raw = tokenizer.token_bytes(id)
        if raw is not None and len(raw) == 1 and raw[0] not in found:
            found[raw[0]] = id
    return found


def letter(tokenizer: Tokenizer) -> int:
    """Return the id of "x", a token that is no single byte in any kind."""
    return tokenizer.encode("x", add_special_tokens=False)[-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
def test_the_pieces_of_any_ids_join_to_what_they_add_to_the_prompt(
    kind: str, skip: bool, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)

    @settings(max_examples=100)
    @given(prompt=numbers, output=numbers)
    def check(prompt: list[int], output: list[int]) -> None:
        ids, new = as_ids(tokenizer, prompt), as_ids(tokenizer, output)
        pieces = decoded(tokenizer, ids, new, skip=skip)
        assert "".join(pieces) == added_text(tokenizer, ids, new, skip=skip)

    check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
def test_the_pieces_of_any_bytes_join_to_what_they_add_to_the_prompt(
    kind: str, skip: bool, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    by_byte = byte_tokens(tokenizer)
    special = next(id for id in range(tokenizer.vocab_size) if tokenizer.is_special(id))
    # Beginnings and ends of characters, plain letters, a special token, and no token at all.
    pool = [by_byte[b] for b in (0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xFF, 0x41, 0x0A)]
    pool += [special, tokenizer.vocab_size + 2]
    ids = st.lists(st.sampled_from(pool), max_size=12)

    @settings(max_examples=200)
    @given(prompt=ids, output=ids)
    def check(prompt: list[int], output: list[int]) -> None:
        pieces = decoded(tokenizer, prompt, output, skip=skip)
        assert "".join(pieces) == added_text(tokenizer, prompt, output, skip=skip)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_text_cut_into_prompt_and_output_anywhere_is_whole_again(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        for cut in range(len(ids)):
            pieces = decoded(tokenizer, ids[:cut], ids[cut:], skip=True)
            assert "".join(pieces) == added_text(tokenizer, ids[:cut], ids[cut:], skip=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_of_a_prompt_join_to_its_text_special_tokens_and_all(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)

    @settings(max_examples=100)
    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=1, max_size=30))
    def check(ids: list[int]) -> None:
        pieces = prompt_pieces(tokenizer, tuple(ids))
        assert len(pieces) == len(ids)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_output_stays_exact(kind: str, make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(kind)
    ids = tokenizer.encode(" ".join(TEXTS * 12), add_special_tokens=False)
    pieces = decoded(tokenizer, ids[:3], ids[3:], skip=True)
    assert "".join(pieces) == added_text(tokenizer, ids[:3], ids[3:], skip=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_character_comes_with_its_last_byte_and_never_in_halves(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    by_byte = byte_tokens(tokenizer)
    ids = [by_byte[byte] for byte in "€".encode()]
    pieces = decoded(tokenizer, [letter(tokenizer)], [*ids, letter(tokenizer)], skip=True)
    assert pieces[:2] == ["", ""]
    assert "".join(pieces) == "€x"


def test_a_byte_level_character_is_out_as_soon_as_it_is_whole(
    make_tokenizer: MakeTokenizer,
) -> None:
    tokenizer = make_tokenizer("byte-level")
    by_byte = byte_tokens(tokenizer)
    ids = [by_byte[byte] for byte in "€".encode()]
    assert decoded(tokenizer, [letter(tokenizer)], ids, skip=True) == ["", "", "€", ""]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unfinished_character_at_the_end_is_flushed_as_a_replacement(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    half = byte_tokens(tokenizer)[0xC3]
    assert decoded(tokenizer, [letter(tokenizer)], [half], skip=True) == ["", "\ufffd"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_ends_inside_a_character_adds_nothing_by_itself(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    by_byte = byte_tokens(tokenizer)
    prompt = [letter(tokenizer), by_byte[0xE2], by_byte[0x82]]
    assert decoded(tokenizer, prompt, [], skip=True) == [""]


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_that_ends_the_prompts_character_says_the_character(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    by_byte = byte_tokens(tokenizer)
    prompt = [letter(tokenizer), by_byte[0xE2], by_byte[0x82]]
    assert "".join(decoded(tokenizer, prompt, [by_byte[0xAC]], skip=True)) == "€"


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_ends_with_a_newline_does_not_repeat_it(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    prompt, output = [byte_tokens(tokenizer)[10]], [letter(tokenizer)]
    assert "".join(decoded(tokenizer, prompt, output, skip=True)) == "x"


@pytest.mark.parametrize("kind", ["llama", "metaspace"])
def test_a_words_space_is_kept_behind_the_prompt(kind: str, make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(kind)
    prompt = tokenizer.encode("Hello", add_special_tokens=False)
    both = tokenizer.encode("Hello world", add_special_tokens=False)
    assert both[: len(prompt)] == prompt
    assert "".join(decoded(tokenizer, prompt, both[len(prompt) :], skip=True)) == " world"


@pytest.mark.parametrize("kind", ["llama", "metaspace"])
def test_the_first_words_space_goes_where_nothing_but_bos_is_before_it(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    assert tokenizer.bos_token_id is not None
    ids = tokenizer.encode("Hello", add_special_tokens=False)
    assert "".join(decoded(tokenizer, [tokenizer.bos_token_id], ids, skip=True)) == "Hello"


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_silent_or_spelt_out(kind: str, make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(kind)
    eos = tokenizer.eos_token_ids[0]
    prompt = tokenizer.encode("a", add_special_tokens=False)
    assert decoded(tokenizer, prompt, [eos], skip=True) == ["", ""]
    assert "".join(decoded(tokenizer, prompt, [eos], skip=False)) == "</s>"


@pytest.mark.parametrize("kind", KINDS)
def test_encoding_adds_one_bos_and_never_a_second(kind: str, make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(kind)
    ids = tokenizer.encode("Hello")
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.encode("<s>Hello").count(ids[0]) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_encoding_without_special_tokens_adds_none_and_takes_none_away(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    for count, text in enumerate(("Hello", "<s>Hello", "<s><s>Hello")):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids.count(tokenizer.bos_token_id or 0) == count


@pytest.mark.parametrize("kind", KINDS)
def test_many_ids_are_decoded_as_few_are(kind: str, make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(kind)
    ids = tokenizer.encode("x€ y" * 2000)
    assert len(ids) > 4096
    for skip in (True, False):
        text = tokenizer.decode(tuple(ids), skip_special_tokens=skip)
        assert text == tokenizer._tokenizer.decode(ids, skip_special_tokens=skip)


def test_a_lone_surrogate_is_refused_by_name(make_tokenizer: MakeTokenizer) -> None:
    with pytest.raises(InvalidParameter, match="`prompt` must hold no lone surrogate"):
        make_tokenizer("byte-level").encode("a\ud800b")


def test_a_file_that_is_no_tokenizer_is_a_bundle_error(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(BundleError, match="is no tokenizer that can be read"):
        Tokenizer(file, bos_token_id=None, eos_token_ids=())


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_of_half_a_character_is_shown_by_its_bytes(
    kind: str, make_tokenizer: MakeTokenizer
) -> None:
    tokenizer = make_tokenizer(kind)
    assert tokenizer.token_text(byte_tokens(tokenizer)[0xC3]) == "bytes:\\xc3"


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_of_text_is_shown_with_its_space(kind: str, make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(kind)
    ids = tokenizer.encode("Hello world", add_special_tokens=False)
    shown = "".join(tokenizer.token_text(id) for id in ids)
    assert shown.lstrip() == "Hello world"
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) is None
