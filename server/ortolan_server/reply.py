"""What the renderers are given: pieces of choices, usage, and the frame of the reply."""

from __future__ import annotations

import msgspec

from ortolan_runtime.events import FinishReason, TokenScore
from ortolan_runtime.text import Tokenizer
from ortolan_server.request import CompletionRequest


class PromptPart(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt of a request: its text, its ids, and the scores of its tokens where asked for."""

    text: str
    ids: tuple[int, ...]
    scores: tuple[TokenScore, ...] = ()


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """New output of one choice; the whole of it when the request does not stream.

    ``offset`` counts the choice's characters before the first of ``tokens``, some of which may have
    come with an earlier piece's text. ``prompt`` is the choice's prompt, to be shown with the piece
    that ``is_first``. ``finish`` is set on the choice's last piece alone.
    """

    index: int
    prompt: PromptPart
    text: str = ""
    tokens: tuple[TokenScore, ...] = ()
    offset: int = 0
    is_first: bool = False
    finish: FinishReason | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request: each prompt counts once, every candidate that was generated counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same in every part of one reply. ``created_s`` is in seconds since the epoch."""

    id: str
    created_s: float
    model: str
    fingerprint: str
    seed: int
    request: CompletionRequest
    tokenizer: Tokenizer
