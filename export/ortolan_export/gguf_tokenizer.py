"""Rebuilds a tokenizer.json from what a GGUF file holds, and finds the tokens that end a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from ortolan_export.errors import ExportError, SourceError, UnsupportedModel
from ortolan_export.gguf_bytelevel import byte_level_bpe, find_splitting
from ortolan_export.gguf_sentencepiece import sentencepiece_bpe, with_plain_spaces
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
        "<eos>",
        "<end_of_turn>",
    }
)
_ENDING_FIELDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# What a SentencePiece file leaves out.
_SENTENCEPIECE_IDS = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def read_texts(fields: Mapping[str, Any], origin: str) -> Texts:
    """Return the texts of a GGUF file whose metadata are ``fields``.

    Raises UnsupportedModel for a kind of tokenizer that is not known, SourceError for a broken one.
    """
    own = _own_fields(fields, origin)
    kinds = own["token_type"]
    try:
        tokenizer, adds_bos = _tokenizer(own, kinds, origin)
    except ExportError:
        raise
    except Exception as exc:  # the library raises nothing narrower
        raise SourceError(
            f"{origin}: no tokenizer can be made of tokenizer.ggml.* ({exc}); download it again"
        ) from exc
    _add_whole_tokens(tokenizer, own, kinds)
    bos = own.get("bos_token_id")
    if own.get("add_bos_token", adds_bos) and bos is not None:
        _put_first(tokenizer, own["tokens"][bos], bos)
    return Texts(
        tokenizer=tokenizer.to_str(),
        chat_template=_chat_template(fields, origin),
        bos_token_id=bos,
        eos_token_ids=_endings(own, kinds),
    )


def _chat_template(fields: Mapping[str, Any], origin: str) -> str | None:
    template = fields.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise SourceError(f"{origin}: tokenizer.chat_template must be a string, got {template!r}")
    return template


def _own_fields(fields: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return the tokenizer's fields, by their last names, with a kind for each token."""
    own = {
        name.removeprefix("tokenizer.ggml."): value
        for name, value in fields.items()
        if name.startswith("tokenizer.ggml.")
    }
    tokens = own.get("tokens")
    if not isinstance(tokens, list):
        raise SourceError(f"{origin} has no tokenizer.ggml.tokens; it is incomplete")
    kinds = own.setdefault("token_type", [1] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise SourceError(f"{origin}: tokenizer.ggml.token_type must hold {len(tokens)} values")
    for name, value in own.items():
        is_id = isinstance(value, int) and 0 <= value < len(tokens)
        if name.endswith("_token_id") and not is_id:
            raise SourceError(
                f"{origin}: tokenizer.ggml.{name} must be within 0..{len(tokens) - 1}, "
                f"got {value!r}"
            )
    return own


def _tokenizer(own: dict[str, Any], kinds: Sequence[int], origin: str) -> tuple[Tokenizer, bool]:
    """Return the tokenizer and whether it puts a BOS first when the file does not say."""
    model = own.get("model")
    if model == "gpt2":
        splitting = find_splitting(own.get("pre"), origin)
        return byte_level_bpe(own, splitting, origin), splitting.adds_bos
    if model == "llama":
        for name, token_id in _SENTENCEPIECE_IDS.items():
            own.setdefault(name, token_id)
        own["tokens"] = with_plain_spaces(own["tokens"], kinds)
        return sentencepiece_bpe(own, kinds, origin), True
    raise UnsupportedModel(
        f"{origin}: tokenizer.ggml.model must be gpt2 (byte-level BPE) or llama (SentencePiece), "
        f"got {model!r}; export from the Hugging Face directory instead"
    )


def _add_whole_tokens(tokenizer: Tokenizer, own: Mapping[str, Any], kinds: Sequence[int]) -> None:
    """Declare the tokens that text is searched for before it is cut."""
    unknown = own.get("unknown_token_id")
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
            for index, (token, kind) in enumerate(zip(own["tokens"], kinds, strict=True))
            if kind in (_CONTROL, _USER_DEFINED) or index == unknown
        ]
    )


def _put_first(tokenizer: Tokenizer, token: str, token_id: int) -> None:
    """Make the tokenizer put a BOS before every text."""
    tokenizer.post_processor = TemplateProcessing(
        single=f"{token} $A",
        pair=f"{token} $A {token} $B",
        special_tokens=[(token, token_id)],
    )


def _endings(own: Mapping[str, Any], kinds: Sequence[int]) -> tuple[int, ...]:
    named = {own[field] for field in _ENDING_FIELDS if field in own}
    known = {
        index
        for index, (token, kind) in enumerate(zip(own["tokens"], kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED) and token in _ENDING_TOKENS
    }
    return tuple(sorted(named | known))
