"""Rebuilds a tokenizer.json from what a GGUF file holds: vocabulary, merges and the name of a
pre-tokeniser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import TemplateProcessing

from ortolan_export.errors import SourceError, UnsupportedModel
from ortolan_export.source import Texts

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

# Tokens that end a text or a turn whether or not the file's metadata say so.
_ENDING_TOKENS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "</s>",
        "<end_of_turn>",
    }
)
_ENDING_FIELDS = ("eos_token_id", "eot_token_id", "eom_token_id")


class _Splitting(msgspec.Struct, frozen=True, kw_only=True):
    """How a byte-level BPE cuts text before it merges."""

    before: Callable[[], PreTokenizer]
    is_nfc: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


def _gpt2() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _by_pattern(digits: str) -> Callable[[], PreTokenizer]:
    """Return the splitting of GPT-4's family; ``digits`` is its pattern for numbers."""
    pattern = "|".join(
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
            r"[^\r\n\p{L}\p{N}]?\p{L}+",
            digits,
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    )

    def build() -> PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, byte_level])

    return build


_GPT2 = _Splitting(before=_gpt2)
_LLAMA3 = _Splitting(before=_by_pattern(r"\p{N}{1,3}"), ignores_merges=True, adds_bos=True)
_QWEN2 = _Splitting(before=_by_pattern(r"\p{N}"), is_nfc=True)

# By tokenizer.ggml.pre.
_SPLITTINGS: Mapping[str, _Splitting] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _Splitting(before=_smollm),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def read_texts(fields: Mapping[str, Any], origin: str) -> Texts:
    """Return the texts of a GGUF file whose metadata are ``fields``.

    Raises UnsupportedModel for a kind of tokenizer that is not known, SourceError for a broken one.
    """
    own = {
        name.removeprefix("tokenizer.ggml."): value
        for name, value in fields.items()
        if name.startswith("tokenizer.ggml.")
    }
    splitting = _splitting(own, origin)
    tokens, kinds = own.get("tokens"), own.get("token_type")
    if not isinstance(tokens, list) or not isinstance(own.get("merges"), list):
        raise SourceError(f"{origin} has no tokenizer.ggml.tokens and merges; it is incomplete")
    kinds = kinds if isinstance(kinds, list) else [1] * len(tokens)
    tokenizer = _byte_level_bpe(tokens, own["merges"], splitting)
    _add_whole_tokens(tokenizer, tokens, kinds)
    bos = own.get("bos_token_id")
    if own.get("add_bos_token", splitting.adds_bos) and bos is not None:
        _put_first(tokenizer, tokens[bos], bos)
    return Texts(
        tokenizer=tokenizer.to_str(),
        chat_template=fields.get("tokenizer.chat_template"),
        bos_token_id=bos,
        eos_token_ids=_endings(own, tokens, kinds),
    )


def _splitting(own: Mapping[str, Any], origin: str) -> _Splitting:
    model = own.get("model")
    if model != "gpt2":
        raise UnsupportedModel(
            f"{origin}: tokenizer.ggml.model must be gpt2 (byte-level BPE), got {model!r}; "
            "export from the Hugging Face directory instead"
        )
    name = own.get("pre", "default")
    if name not in _SPLITTINGS:
        known = ", ".join(sorted(_SPLITTINGS))
        raise UnsupportedModel(
            f"{origin}: tokenizer.ggml.pre must be one of {known}, got {name!r}; "
            "export from the Hugging Face directory instead"
        )
    return _SPLITTINGS[name]


def _byte_level_bpe(tokens: list[str], merges: list[str], splitting: _Splitting) -> Tokenizer:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        BPE(vocab=vocabulary, merges=pairs, ignore_merges=splitting.ignores_merges)
    )
    if splitting.is_nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitting.before()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_whole_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Declare the tokens that text is searched for before it is cut."""
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )


def _put_first(tokenizer: Tokenizer, token: str, token_id: int) -> None:
    """Make the tokenizer put a BOS before every text."""
    tokenizer.post_processor = TemplateProcessing(
        single=f"{token} $A",
        pair=f"{token} $A {token} $B",
        special_tokens=[(token, token_id)],
    )


def _endings(own: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> tuple[int, ...]:
    named = {own[field] for field in _ENDING_FIELDS if isinstance(own.get(field), int)}
    known = {
        index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _CONTROL and token in _ENDING_TOKENS
    }
    return tuple(sorted(named | known))
