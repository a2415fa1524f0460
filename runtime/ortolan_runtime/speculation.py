"""Prompt lookup: guessing the next tokens from what the text said before, to check them in one
step.

Running several tokens of one row costs little more than running one, since the weights are read
once either way. So when the last tokens occurred before, those that followed them then are run
along, and kept as far as sampling chooses the same. Source: Saxena, "Prompt Lookup Decoding", 2023;
the check is that of speculative decoding, Leviathan et al., 2023, arXiv:2211.17192, with a draft of
probability 1.
"""

from __future__ import annotations

from dataclasses import dataclass

# How many tokens at the end must have occurred before, of these the first that have. Longer matches
# are found too seldom; a single token that occurred before guesses wrong more often than it pays.
_MATCHES = (3, 2)
_FIRST_DRAFT = 4
_LEAST_DRAFT, _MAX_DRAFT = 2, 12
# How fast averages follow. Gains must fall quickly: a few wrong guesses after right ones say that
# the text has moved on, and each costs a third of a step or more.
_COST_SMOOTHING = 0.1
_GAIN_SMOOTHING = 0.3
# A guess must be expected to gain at least this factor, or plain steps are taken for a while: a few
# at first, as many again each time, for a text that begins to repeat itself should not wait long.
_WORTHWHILE = 1.05
_FIRST_PAUSE, _MAX_PAUSE = 4, 64


class PromptLookup:
    """Finds what followed the last tokens of one sequence the time before.

    ``tokens`` is the live list of the sequence, which only grows.
    """

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._ends: dict[tuple[int, ...], int] = {}  # an n-gram to the place after it
        self._indexed = 0

    def draft(self, count: int) -> list[int]:
        """Return ``count`` tokens that may come next, none when nothing matches.

        Where the match reaches into its own continuation, the text is taken to go round in circles.
        """
        self._index()
        tokens = self._tokens
        for length in _MATCHES:
            place = self._ends.get(tuple(tokens[-length:]))
            if place is not None:
                period = len(tokens) - place
                return [tokens[place + i % period] for i in range(count)]
        return []

    def _index(self) -> None:
        """Note where the n-grams end, but for the last ones: these shall find those before."""
        tokens = self._tokens
        for end in range(self._indexed, len(tokens)):
            for length in _MATCHES:
                if end >= length:
                    self._ends[tuple(tokens[end - length : end])] = end
        self._indexed = len(tokens)


@dataclass(slots=True)
class SpeculationPolicy:
    """Decides how many tokens to guess, from what guessing gained and cost lately.

    Times are in seconds. One policy serves all sequences, since cost is the machine's and gain
    mostly the text's.
    """

    length: int = _FIRST_DRAFT
    _plain_s: float = 0.0
    _gain: float = 1.0  # tokens a step gave, over the time of that step in plain steps
    _pause: int = 0
    _next_pause: int = _FIRST_PAUSE
    _has_tried: bool = False

    def draft_length(self) -> int:
        """Return how many tokens to guess now; 0 for a plain step."""
        if self._plain_s == 0.0:
            return 0  # the cost of a plain step is not known yet
        if self._pause > 0:
            self._pause -= 1
            return 0
        return self.length

    def note_plain(self, seconds: float) -> None:
        """Learn what a step without guesses costs."""
        first = self._plain_s == 0.0
        self._plain_s += (seconds - self._plain_s) * (1.0 if first else _COST_SMOOTHING)

    def note_guess(self, *, drafted: int, accepted: int, seconds: float) -> None:
        """Learn from a step that ran ``drafted`` guesses, of which ``accepted`` were right."""
        gain = (1 + accepted) * self._plain_s / seconds
        self._gain += (gain - self._gain) * (_GAIN_SMOOTHING if self._has_tried else 1.0)
        self._has_tried = True
        if accepted == drafted:
            self.length = min(self.length + 2, _MAX_DRAFT)
        else:
            self.length = max(accepted + 1, _LEAST_DRAFT)
        if self._gain >= _WORTHWHILE:
            self._next_pause = _FIRST_PAUSE
            return
        self._pause, self._has_tried = self._next_pause, False
        self._next_pause = min(2 * self._next_pause, _MAX_PAUSE)
