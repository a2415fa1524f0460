"""Rebuilds a byte-level BPE, GPT-2's kind, from a GGUF file's tokens, merges and pre-tokeniser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import PreTokenizer

from ortolan_export.errors import SourceError, UnsupportedModel

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"


class Splitting(msgspec.Struct, frozen=True, kw_only=True):
    """How text is cut before merges, and what else goes by the name of a pre-tokeniser.

    ``ignores_merges`` takes a whole piece that is a token as it is; ``adds_bos`` is the default of
    the file's add_bos_token.
    """

    before: Callable[[], PreTokenizer]
    is_nfc: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


def _gpt2() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_apart() -> PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _pattern(*branches: str) -> Callable[[], PreTokenizer]:
    """Return the splitting by a pattern of these branches, then those for white space."""
    pattern = "|".join((*branches, r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"))

    def build() -> PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, byte_level])

    return build


def _words(digits: str) -> Callable[[], PreTokenizer]:
    """Return GPT-4's splitting; ``digits`` is its branch for numbers."""
    letters, others = rf"{_BEFORE_WORD}\p{{L}}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    return _pattern(_CONTRACTIONS, letters, digits, others)


def _cased_words(digits: str, after: str = "") -> Callable[[], PreTokenizer]:
    """Return GPT-4o's splitting, which cuts where a word goes from lower to upper case."""
    capitalised = rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{after}"
    capitals = rf"{_BEFORE_WORD}{_UPPER}+{_LOWER}*{after}"
    return _pattern(capitalised, capitals, digits, r" ?[^\s\p{L}\p{N}]+[\r\n/]*")


_GPT2 = Splitting(before=_gpt2)
_DIGITS_APART = Splitting(before=_digits_apart)
_THREE_DIGITS = Splitting(before=_words(r"\p{N}{1,3}"))
_LLAMA3 = Splitting(before=_words(r"\p{N}{1,3}"), ignores_merges=True, adds_bos=True)
_QWEN2 = Splitting(before=_words(r"\p{N}"), is_nfc=True)
_GPT4O = Splitting(before=_cased_words(r"\p{N}{1,3}", f"{_CONTRACTIONS}?"), ignores_merges=True)
_TEKKEN = Splitting(before=_cased_words(r"\p{N}"), ignores_merges=True, adds_bos=True)

# By tokenizer.ggml.pre. A file without one was written before there were any, and nothing in it
# says how its text is cut.
SPLITTINGS: Mapping[str, Splitting] = {
    "dbrx": _THREE_DIGITS,
    "deepseek-r1-qwen": _QWEN2,
    "falcon3": _LLAMA3,
    "gpt-2": _GPT2,
    "gpt-4o": _GPT4O,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "olmo": _GPT2,
    "phi-2": _GPT2,
    "pixtral": _LLAMA3,
    "qwen2": _QWEN2,
    "refact": _DIGITS_APART,
    "smaug-bpe": _THREE_DIGITS,
    "smollm": _DIGITS_APART,
    "starcoder": _DIGITS_APART,
    "tekken": _TEKKEN,
}


def find_splitting(name: object, origin: str) -> Splitting:
    """Return the splitting that goes by ``name``. Raises UnsupportedModel."""
    splitting = SPLITTINGS.get(name) if isinstance(name, str) else None
    if splitting is None:
        known = ", ".join(sorted(SPLITTINGS))
        raise UnsupportedModel(
            f"{origin}: tokenizer.ggml.pre must be one of {known}, got {name!r}; "
            "export from the Hugging Face directory instead"
        )
    return splitting


def byte_level_bpe(own: Mapping[str, Any], splitting: Splitting, origin: str) -> Tokenizer:
    """Return the tokenizer without its special tokens. Raises SourceError."""
    merges = own.get("merges")
    if not isinstance(merges, list):
        raise SourceError(f"{origin} has no tokenizer.ggml.merges; it is incomplete")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: index for index, token in enumerate(own["tokens"])}
    tokenizer = Tokenizer(
        BPE(vocab=vocabulary, merges=pairs, ignore_merges=splitting.ignores_merges)
    )
    if splitting.is_nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitting.before()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
