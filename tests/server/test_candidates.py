"""Counting candidates and their tokens."""

from __future__ import annotations

import pytest

from ortolan_runtime.events import Ending, Event, TokenScore
from ortolan_server.candidates import Candidates
from ortolan_server.errors import ApiError
from ortolan_server.reply import PromptPart
from ortolan_server.request import CompletionRequest

PROMPTS = [PromptPart(text="ab", ids=(1, 2)), PromptPart(text="c", ids=(3,))]


def ended(tokens: int, mean: float = 0.0, text: str = "") -> Event:
    """Return an event that ends a sequence."""
    ending = Ending(reason="length", completion_tokens=tokens, mean_logprob=mean)
    return Event(text=text, new_tokens=1, ending=ending)


def candidates(n: int = 1, best_of: int = 1, **fields: object) -> Candidates:
    """Return the candidates of a request with two prompts."""
    request = CompletionRequest(prompts=("ab", "c"), n=n, best_of=best_of, **fields)  # type: ignore[arg-type]
    return Candidates(request, PROMPTS)


def test_the_best_candidates_are_chosen_by_mean_logprob_prompt_by_prompt() -> None:
    """Choices are numbered anew, the best first."""
    all_of_them = candidates(n=2, best_of=3)
    means = [-3.0, -1.0, -2.0, -5.0, -5.0, -4.0]
    all_of_them.collect(
        (position, ended(1, mean, str(position))) for position, mean in enumerate(means)
    )
    assert all_of_them.have_ended
    chosen = all_of_them.choices()
    assert [(piece.index, piece.text) for piece in chosen] == [
        (0, "1"),
        (1, "2"),
        (2, "5"),
        (3, "3"),
    ]


def test_each_prompt_counts_once_and_every_candidate_counts() -> None:
    """What the cache saved is what it saved the first of a prompt's candidates."""
    both = candidates(n=2, best_of=2)
    for position, cached in enumerate((1, 2, 0, 1)):
        both.collect([(position, Event(cached_tokens=cached)), (position, ended(5))])
    usage = both.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (3, 20, 1)


def test_an_event_without_news_is_no_piece_unless_the_prompt_is_echoed() -> None:
    """The prompt's scores come before any token."""
    scores = (TokenScore(1, "a"), TokenScore(2, "b", -1.0))
    silent = candidates()
    assert silent.piece(0, Event(prompt=scores)) is None
    first = silent.piece(0, Event(text="", new_tokens=1))
    assert first is not None
    assert first.is_first
    echoing = candidates(echo=True, logprobs=0)
    piece = echoing.piece(0, Event(prompt=scores))
    assert piece is not None
    assert (piece.is_first, piece.prompt.scores, piece.text) == (True, scores, "")
    later = echoing.piece(0, Event(text="x", new_tokens=1))
    assert later is not None
    assert not later.is_first


def test_offsets_count_what_was_said_before() -> None:
    """In characters; a token whose text came out in part before it begins with that part."""
    both = candidates()
    said = [("é", ("é",)), ("日", ()), ("本x", ("日本", "x")), ("y", ("y",))]
    pieces = [
        both.piece(
            0, Event(text=text, tokens=tuple(TokenScore(1, t) for t in tokens), new_tokens=1)
        )
        for text, tokens in said
    ]
    assert [piece.offset for piece in pieces if piece] == [0, 1, 1, 4]


@pytest.mark.parametrize(("reason", "status"), [("error", 500), ("cancelled", 503)])
def test_a_failure_of_one_sequence_is_a_failure_of_the_request(reason: str, status: int) -> None:
    """An ending that nobody asked for is not an answer."""
    ending = Ending(reason=reason, completion_tokens=0, error="broken")  # type: ignore[arg-type]
    with pytest.raises(ApiError) as caught:
        candidates().collect([(0, Event(ending=ending))])
    assert caught.value.status == status
