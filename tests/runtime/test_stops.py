"""Stop strings end a text where they would if its characters came one at a time."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ortolan_runtime.stops import StopMatcher


def by_character(
    text: str, stops: list[str], *, include: bool, spared: int = 0
) -> tuple[str, bool]:
    """Return the text up to its stop, found by adding one character after the other.

    No stop ends within the first ``spared`` characters.
    """
    for end in range(spared + 1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(len(stop) for stop in ended)
            return text[: end if include else end - longest], True
    return text, False


def matched(
    pieces: list[str], stops: list[str], *, include: bool = False, spared: int = 0
) -> tuple[list[str], bool]:
    """Return what goes out after each piece, the flush last, and whether a stop was met.

    The first ``spared`` pieces are passed without one.
    """
    matcher = StopMatcher(stops, include_stop=include)
    out = [matcher.spare(piece) for piece in pieces[:spared]]
    for piece in pieces[spared:]:
        text, has_stopped = matcher.push(piece)
        out.append(text)
        if has_stopped:
            return out, True
    return [*out, matcher.flush()], False


letters = st.text("ab.", max_size=6)


@settings(max_examples=500)
@given(
    pieces=st.lists(letters, max_size=8),
    stops=st.lists(st.text("ab.", min_size=1, max_size=4), max_size=4),
    include=st.booleans(),
    spared=st.integers(0, 4),
)
@example(pieces=["which one"], stops=["ic", "hi"], include=False, spared=0)
@example(pieces=["abcd"], stops=["abcd", "bc"], include=False, spared=0)
@example(pieces=["xbcdd"], stops=["abcd", "bc"], include=True, spared=0)
@example(pieces=["aab"], stops=["aab", "ab", "b"], include=False, spared=0)
@example(pieces=["ab.a", "b"], stops=["ab", ".ab"], include=False, spared=1)
def test_any_pieces_and_stops_give_the_text_of_the_character_wise_search(
    pieces: list[str], stops: list[str], include: bool, spared: int
) -> None:
    text, passed = "".join(pieces), len("".join(pieces[:spared]))
    out, has_stopped = matched(pieces, stops, include=include, spared=spared)
    assert ("".join(out), has_stopped) == by_character(text, stops, include=include, spared=passed)


@settings(max_examples=300)
@given(
    pieces=st.lists(letters, max_size=8),
    stops=st.lists(st.text("ab.", min_size=1, max_size=4), max_size=4),
)
def test_no_more_text_is_held_than_may_begin_a_stop(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen, gone = "", ""
    for piece in pieces:
        text, has_stopped = matcher.push(piece)
        seen, gone = seen + piece, gone + text
        if has_stopped:
            return
        held = seen[len(gone) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_string_split_over_two_pieces_is_not_streamed() -> None:
    assert matched(["one EN", "D two"], ["END"]) == (["one ", ""], True)


def test_what_only_looked_like_a_stop_comes_out_later() -> None:
    assert matched(["one EN", "d two"], ["END"]) == (["one ", "ENd two", ""], False)


def test_held_text_is_flushed_at_another_ending() -> None:
    assert matched(["one EN"], ["END"]) == (["one ", "EN"], False)


def test_a_stop_that_is_included_goes_out_and_nothing_behind_it() -> None:
    assert matched(["one EN", "D two"], ["END"], include=True) == (["one ", "END"], True)


def test_a_stop_at_the_very_beginning_leaves_no_text() -> None:
    assert matched(["END of it"], ["END"]) == ([""], True)


@pytest.mark.parametrize("stops", [["ic", "hi"], ["hi", "ic"]])
def test_the_stop_that_is_complete_first_wins_whatever_the_order(stops: list[str]) -> None:
    assert matched(["which one"], stops) == (["w"], True)


def test_of_two_stops_that_end_together_the_longer_one_cuts() -> None:
    assert matched(["ab"], ["b", "ab"]) == ([""], True)


def test_without_stops_nothing_is_held() -> None:
    assert matched(["a", "b"], []) == (["a", "b", ""], False)


def test_a_stop_may_hold_characters_of_several_bytes() -> None:
    assert matched(["5 €", "\n漢", "字"], ["€\n漢字"]) == (["5 ", "", ""], True)
