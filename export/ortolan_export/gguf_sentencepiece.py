"""Rebuilds a SentencePiece BPE, Llama's and Gemma's kind, from a GGUF file's tokens and scores.

SentencePiece joins the two neighbours whose union has the best score; a BPE joins the pair that
comes first in a list. So the list holds, from the best score to the worst, each way to make a token
of two others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from ortolan_export.errors import SourceError

_NORMAL, _USER_DEFINED = 1, 4  # values of tokenizer.ggml.token_type
_SPACE = "\u2581"  # SentencePiece's mark for a space

Merge = tuple[str, str]


def with_plain_spaces(tokens: Sequence[str], kinds: Sequence[int]) -> list[str]:
    """Return the tokens, those of the user with spaces for marks, which some files have.

    Text is searched for such tokens before its spaces are marked.
    """
    return [
        token.replace(_SPACE, " ") if kind == _USER_DEFINED else token
        for token, kind in zip(tokens, kinds, strict=True)
    ]


def sentencepiece_bpe(own: Mapping[str, Any], kinds: Sequence[int], origin: str) -> Tokenizer:
    """Return the tokenizer without its special tokens. Raises SourceError."""
    tokens, scores = own["tokens"], own.get("scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise SourceError(f"{origin} has no tokenizer.ggml.scores, one a token; it is incomplete")
    normal = {
        token: score
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
        if kind == _NORMAL
    }
    unknown = own.get("unknown_token_id")
    tokenizer = Tokenizer(
        BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=_merges(normal),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    _mark_spaces(tokenizer, has_prefix=bool(own.get("add_space_prefix", True)))
    return tokenizer


def _merges(scores: Mapping[str, float]) -> list[Merge]:
    """Return the merges in the order in which SentencePiece would make them.

    Ways to make tokens of one score go by the lengths of their halves, the longest first, which is
    how transformers lists them.
    """
    found = [
        (score, left, right)
        for token, score in scores.items()
        for left, right in _ways(token, scores)
    ]
    found.sort(key=lambda way: (way[0], len(way[1]), len(way[2])), reverse=True)
    return [(left, right) for _, left, right in found]


def _ways(token: str, known: Mapping[str, float]) -> Iterator[Merge]:
    for cut in range(1, len(token)):
        left, right = token[:cut], token[cut:]
        if left in known and right in known:
            yield left, right


def _mark_spaces(tokenizer: Tokenizer, *, has_prefix: bool) -> None:
    """Make spaces visible before merges and invisible after; a prefix is a space before a text."""
    mark = normalizers.Replace(" ", _SPACE)
    unmark = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), mark])
        tokenizer.decoder = decoders.Sequence([*unmark, decoders.Strip(" ", 1, 0)])
        return
    tokenizer.normalizer = mark
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence(unmark)
