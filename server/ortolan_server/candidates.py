"""Keeps count of a request's candidates while their events arrive, and makes pieces of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from ortolan_runtime.events import Ending, Event, TokenScore
from ortolan_server.errors import SERVER, ApiError, unavailable
from ortolan_server.reply import Piece, PromptPart, Usage
from ortolan_server.request import CompletionRequest


@dataclass(slots=True)
class Candidate:
    """What one sequence has said so far."""

    text: list[str] = field(default_factory=list)
    tokens: list[TokenScore] = field(default_factory=list)
    prompt_scores: tuple[TokenScore, ...] = ()
    characters: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    has_begun: bool = False
    ending: Ending | None = None

    def take(self, event: Event) -> None:
        """Count an event. Raises ApiError when it tells of a failure."""
        self.characters += sum(len(token.text) for token in event.tokens)
        self.completion_tokens += event.new_tokens
        self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
        self.prompt_scores = event.prompt or self.prompt_scores
        if event.ending is not None:
            _raise_failure(event.ending)
            self.ending = event.ending
            self.completion_tokens = event.ending.completion_tokens


class Candidates:
    """All candidates of one request: ``best_of`` for each prompt, prompt by prompt."""

    def __init__(self, request: CompletionRequest, prompts: list[PromptPart]) -> None:
        self._request = request
        self._prompts = prompts
        self._all = [Candidate() for _ in range(len(prompts) * request.best_of)]
        self._running = len(self._all)

    @property
    def have_ended(self) -> bool:
        """Return whether every candidate has ended."""
        return self._running == 0

    def usage(self) -> Usage:
        """Return the tokens up to now; a prompt is computed once however many candidates it has."""
        best_of = self._request.best_of
        per_prompt = [self._all[i : i + best_of] for i in range(0, len(self._all), best_of)]
        return Usage(
            prompt_tokens=sum(len(prompt.ids) for prompt in self._prompts),
            completion_tokens=sum(candidate.completion_tokens for candidate in self._all),
            cached_tokens=sum(min(c.cached_tokens for c in group) for group in per_prompt),
        )

    def collect(self, events: Iterable[tuple[int, Event]]) -> None:
        """Keep the events for ``choices``. Raises ApiError when one tells of a failure."""
        for position, event in events:
            candidate = self._take(position, event)
            candidate.text.append(event.text)
            candidate.tokens.extend(event.tokens)

    def choices(self) -> list[Piece]:
        """Return the ``n`` best candidates of each prompt, whole; ties keep their order."""
        best_of, n = self._request.best_of, self._request.n
        chosen: list[Piece] = []
        for index, prompt in enumerate(self._prompts):
            group = self._all[index * best_of : (index + 1) * best_of]
            scored = msgspec.structs.replace(prompt, scores=group[0].prompt_scores)
            if best_of > n:
                group = sorted(group, key=_rank, reverse=True)[:n]
            for candidate in group[:n]:
                chosen.append(_whole(candidate, len(chosen), scored))
        return chosen

    def piece(self, position: int, event: Event) -> Piece | None:
        """Return the piece of a stream that an event is, None when it has nothing to show.

        Raises ApiError when it tells of a failure.
        """
        offset = self._all[position].characters
        candidate = self._take(position, event)
        shows_prompt = not candidate.has_begun and self._request.echo
        if not (event.new_tokens or event.text or event.ending or shows_prompt):
            return None
        is_first, candidate.has_begun = not candidate.has_begun, True
        prompt = self._prompts[position // self._request.best_of]
        if is_first and candidate.prompt_scores:
            prompt = msgspec.structs.replace(prompt, scores=candidate.prompt_scores)
        return Piece(
            index=position,
            prompt=prompt,
            text=event.text,
            tokens=event.tokens,
            offset=offset,
            is_first=is_first,
            finish=None if event.ending is None else event.ending.reason,
        )

    def _take(self, position: int, event: Event) -> Candidate:
        candidate = self._all[position]
        candidate.take(event)
        self._running -= event.ending is not None
        return candidate


def _whole(candidate: Candidate, index: int, prompt: PromptPart) -> Piece:
    assert candidate.ending is not None
    return Piece(
        index=index,
        prompt=prompt,
        text="".join(candidate.text),
        tokens=tuple(candidate.tokens),
        is_first=True,
        finish=candidate.ending.reason,
    )


def _rank(candidate: Candidate) -> float:
    assert candidate.ending is not None
    return candidate.ending.mean_logprob


def _raise_failure(ending: Ending) -> None:
    if ending.reason == "error":
        raise ApiError(500, ending.error or "the engine failed on this request", type=SERVER)
    if ending.reason == "cancelled":
        raise unavailable("the server ended this request because it is shutting down")
