"""What the engine tells about a sequence while it runs: plain values, one message type a boundary.

A sequence gives any number of events; exactly one, its last, carries an ``ending``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

FinishReason = Literal["stop", "eos", "length", "cancelled", "error"]


class TokenScore(msgspec.Struct, frozen=True):
    """One token with what it added to the text and its raw logprob (natural log).

    ``text`` is the piece that this token completed: "" for a token whose bytes end inside a
    character, which the token that ends the character then carries whole. ``logprob`` is None when
    none was asked for, and for the first token of a prompt. ``top`` holds (id, logprob) of the
    likeliest tokens, best first, without the sampled token unless it is among them.
    """

    id: int
    text: str
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a sequence ended. ``stop`` is a stop string or stop token id, ``eos`` the model's own
    end.

    ``completion_tokens`` counts every generated token, an EOS and those cut with a stop string
    included; ``prefilled_tokens`` of the prompt were computed for it, again after each preemption,
    and ``reused_tokens`` taken from the cache; ``mean_logprob`` is the mean raw logprob over the
    generated ones (0.0 without any); ``error`` says what went wrong, without any of the prompt, and
    is set when the reason is ``error``.
    """

    reason: FinishReason
    completion_tokens: int
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    mean_logprob: float = 0.0
    error: str | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """News of one sequence after one step.

    ``text`` is new text that is final (never part of a stop string, never half a character);
    ``tokens`` are the tokens whose text it is; ``new_tokens`` counts tokens generated in this step,
    whether or not their text is out yet. ``prompt`` is filled once, before any text, with the
    scores of the prompt's tokens when the request asked for them. ``cached_tokens`` is how many of
    the prompt's tokens came from the prefix cache.
    """

    text: str = ""
    tokens: tuple[TokenScore, ...] = ()
    new_tokens: int = 0
    prompt: tuple[TokenScore, ...] = ()
    cached_tokens: int = 0
    ending: Ending | None = None


class EventSink(Protocol):
    """Where the engine's thread hands the events of one step; must not block or raise."""

    def deliver(self, events: Sequence[tuple[int, Event]]) -> None:
        """Take (sequence id, event) pairs in the order in which they happened."""
