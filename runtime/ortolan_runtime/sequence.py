"""One sequence while it runs: its tokens, its text, its scores, and when it ends."""

from __future__ import annotations

import msgspec
import numpy as np

from ortolan_runtime.adjustments import RowState, TokenCounts
from ortolan_runtime.events import Ending, Event, FinishReason, TokenScore
from ortolan_runtime.logits import Logits, LogSumExp, Row
from ortolan_runtime.params import GenerationRequest
from ortolan_runtime.randomness import Draws
from ortolan_runtime.sampling import logprob_of, top_logprobs
from ortolan_runtime.scheduler import Work
from ortolan_runtime.speculation import PromptLookup
from ortolan_runtime.text import IncrementalDecoder, TextStream, Tokenizer


class Sequence:
    """A request with everything that it has become so far."""

    def __init__(self, id: int, request: GenerationRequest, tokenizer: Tokenizer) -> None:
        self.id = id
        self.request = request
        self.work = Work(
            id=id,
            tokens=list(request.prompt),
            prompt_length=len(request.prompt),
            salt=request.cache_salt,
            scores_prompt=request.prompt_logprobs is not None,
            score_count=request.prompt_logprobs or 0,
        )
        self.has_begun = False
        self.prefilled = self.reused = 0
        self.lookup = PromptLookup(self.work.tokens)
        self._tokenizer = tokenizer
        self._stop_tokens = self._spelt_out_stops()
        self._end_ids = frozenset((*request.stop_token_ids, *self._stop_tokens))
        self._eos_ids = frozenset() if request.ignore_eos else frozenset(tokenizer.eos_token_ids)
        self._counts = TokenCounts(prompt=self._penalised_prompt())
        self._draws = Draws(request.sampling.seed, request.sampling.choice)
        self._logprob_sum = 0.0
        self._stream = TextStream(
            tokenizer,
            request.prompt,
            stop=request.stop,
            include_stop=request.include_stop_in_output,
            min_tokens=request.min_tokens,
            skip_special_tokens=request.skip_special_tokens,
        )

    @property
    def generated(self) -> int:
        """Return how many tokens were generated."""
        return len(self.work.tokens) - self.work.prompt_length

    @property
    def remaining_tokens(self) -> int:
        """Return how many tokens may still be generated."""
        return self.request.max_tokens - self.generated

    def sampling_state(self) -> RowState:
        """Return what sampling needs to know for the next token."""
        bans_ends = self.generated < self.request.min_tokens
        is_drawn = not self.request.sampling.is_greedy
        return RowState(
            params=self.request.sampling,
            counts=self._counts,
            draw=self._draws.at(self.generated) if is_drawn else 0.0,
            tokens=self.work.tokens,
            banned=tuple(self._eos_ids | self._end_ids) if bans_ends else (),
        )

    def score_prompt(self, start: int, logits: Logits, logsumexp: LogSumExp) -> None:
        """Note the scores of the tokens that follow positions ``start``, ``start`` + 1, …

        ``logits`` is float32 ``[positions, vocab]``. A preempted sequence scores nothing twice.
        """
        scores = self.work.scores
        assert scores is not None, "only a prompt whose scores were asked for is scored"
        prompt = self.request.prompt
        for offset in range(len(logits)):
            position = start + offset + 1
            if len(scores.items) < position < len(prompt):
                token, row = prompt[position], logits[offset]
                scores.items.append(self._score(token, row, logsumexp[offset], scores.count))

    def begin(self) -> Event:
        """Return the first event, once the prompt is in the cache."""
        self.has_begun = True
        self.reused = self.work.cached_tokens
        return Event(prompt=self._scored_prompt(), cached_tokens=self.work.cached_tokens)

    def push(self, token: int, logits: Row, logsumexp: np.float32) -> Event:
        """Take the next token; return what there is to tell. ``logits`` is float32 ``[vocab]``."""
        score = self._score(token, logits, logsumexp, self.request.logprobs)
        self._logprob_sum += logprob_of(logits, logsumexp, token)
        self.work.tokens.append(token)
        self._counts.add(token)
        if token in self._eos_ids or token in self._end_ids:
            if token in self._eos_ids:
                return self._finish("eos", last=score, new_tokens=1)
            shown = msgspec.structs.replace(score, text=self._stop_tokens.get(token, ""))
            return self._finish("stop", last=shown, new_tokens=1)
        text, tokens = self._stream.push(score)
        if self._stream.has_stopped:
            return Event(text=text, tokens=tokens, new_tokens=1, ending=self._ending("stop"))
        if self.generated >= self.request.max_tokens:
            rest = self._finish("length", new_tokens=1)
            return Event(
                text=text + rest.text,
                tokens=tokens + rest.tokens,
                new_tokens=1,
                ending=rest.ending,
            )
        return Event(text=text, tokens=tokens, new_tokens=1)

    def finish(self, reason: FinishReason) -> Event:
        """Return the last event, at an ending that no token brought about."""
        return self._finish(reason)

    def fail(self, error: str) -> Event:
        """Return the last event, after a failure that ``error`` describes."""
        return Event(ending=self._ending("error", error))

    def _finish(
        self, reason: FinishReason, *, last: TokenScore | None = None, new_tokens: int = 0
    ) -> Event:
        text, tokens = self._stream.finish(last)
        if self._stream.has_stopped:
            reason = "stop"
        return Event(text=text, tokens=tokens, new_tokens=new_tokens, ending=self._ending(reason))

    def _ending(self, reason: FinishReason, error: str | None = None) -> Ending:
        mean = self._logprob_sum / self.generated if self.generated else 0.0
        return Ending(
            reason=reason,
            completion_tokens=self.generated,
            prefilled_tokens=self.prefilled,
            reused_tokens=self.reused,
            mean_logprob=mean,
            error=error,
        )

    def _score(
        self, token: int, logits: Row, logsumexp: np.float32, count: int | None
    ) -> TokenScore:
        if count is None:
            return TokenScore(token, "")
        top = top_logprobs(logits, logsumexp, count)
        return TokenScore(token, "", logprob_of(logits, logsumexp, token), tuple(top))

    def _scored_prompt(self) -> tuple[TokenScore, ...]:
        """Return the prompt's tokens with their scores and the text that each completes."""
        if self.work.scores is None:
            return ()
        prompt = self.request.prompt
        pieces = prompt_pieces(self._tokenizer, prompt)
        scores = [TokenScore(prompt[0], ""), *self.work.scores.items]
        return tuple(
            TokenScore(score.id, piece, score.logprob, score.top)
            for score, piece in zip(scores, pieces, strict=True)
        )

    def _spelt_out_stops(self) -> dict[int, str]:
        """Return the control tokens that are stop strings, with what each adds to the text.

        They are left out of the text, so that no search of it would find them.
        """
        request = self.request
        if not request.skip_special_tokens:
            return {}
        spelt = self._tokenizer.special_tokens(request.stop)
        return spelt if request.include_stop_in_output else dict.fromkeys(spelt, "")

    def _penalised_prompt(self) -> frozenset[int]:
        is_needed = self.request.sampling.repetition_penalty != 1.0
        return frozenset(self.request.prompt) if is_needed else frozenset()


def prompt_pieces(tokenizer: Tokenizer, prompt: tuple[int, ...]) -> list[str]:
    """Return the text that each token of a prompt completes; joined they are the decoded prompt."""
    decoder = IncrementalDecoder(tokenizer, (), skip_special_tokens=False)
    pieces: list[str] = []
    for token in prompt:
        if settled := decoder.settle(token):
            pieces[-1] += settled
        pieces.append(decoder.push(token))
    pieces[-1] += decoder.flush()
    return pieces
