"""How scores are shown: names of tokens, maps of the likeliest ones, offsets into the text.

No infinity and no NaN reaches JSON: what is no finite number <= 0 becomes LOWEST or 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ortolan_runtime.events import TokenScore
from ortolan_runtime.text import Tokenizer
from ortolan_server.reply import Piece, PromptPart
from ortolan_server.request import CompletionRequest

LOWEST = -9999.0

# Characters of a prompt that are passed over at most to find the next token behind them.
_MOST_REWRITTEN = 64


def shown_logprob(value: float) -> float:
    """Return ``value`` within LOWEST..0."""
    # Written so that NaN becomes LOWEST.
    return min(value, 0.0) if value > LOWEST else LOWEST


def token_name(score: TokenScore, tokenizer: Tokenizer) -> str:
    """Return how a token of the text is shown.

    Its own text, or ``bytes:`` and its bytes; the first word of a text may lack the space that its
    token carries, and is then shown as the text has it.
    """
    name = tokenizer.token_text(score.id)
    return score.text if name == f" {score.text}" else name


def top_map(score: TokenScore, tokenizer: Tokenizer, count: int) -> dict[str, float] | None:
    """Return the ``count`` likeliest tokens and the sampled one by name, None without a score.

    Two ids with one text stay two entries: the later one is named by its bytes.
    """
    if score.logprob is None:
        return None
    names = {score.id: token_name(score, tokenizer)}
    taken = {names[score.id]}
    shown: dict[str, float] = {}
    for id, logprob in score.top[:count]:
        name = names.get(id) or _distinct_name(id, taken, tokenizer)
        taken.add(name)
        shown[name] = shown_logprob(logprob)
    shown.setdefault(names[score.id], shown_logprob(score.logprob))
    return shown


def completions_logprobs(
    piece: Piece, request: CompletionRequest, tokenizer: Tokenizer, *, with_prompt: bool
) -> dict[str, Any] | None:
    """Return the four arrays of the completions endpoint for a piece, None when not asked for.

    Offsets count characters and start at the prompt's length unless the prompt is shown too.
    """
    if request.logprobs is None:
        return None
    prompt = _as_shown(piece.prompt) if with_prompt and piece.is_first else []
    scores = [*prompt, *piece.tokens]
    if not scores and piece.finish is None:
        return None
    start = len(piece.prompt.text) + piece.offset
    names = [token_name(score, tokenizer) for score in scores]
    if prompt and not prompt[0].text and tokenizer.is_special(prompt[0].id):
        names[0] = ""  # a BOS that the text does not show
    return {
        "tokens": names,
        "token_logprobs": [_logprob(score) for score in scores],
        "top_logprobs": [top_map(score, tokenizer, request.logprobs) for score in scores],
        "text_offset": [*_offsets(prompt, 0), *_offsets(piece.tokens, start)],
    }


def prompt_logprobs(
    scores: Sequence[TokenScore], tokenizer: Tokenizer, count: int
) -> list[dict[str, Any] | None]:
    """Return vLLM's ``prompt_logprobs``: per prompt token a map of id to its score, null first."""
    return [
        None if score.logprob is None else _by_id(score, score.logprob, tokenizer, count)
        for score in scores
    ]


def _by_id(score: TokenScore, logprob: float, tokenizer: Tokenizer, count: int) -> dict[str, Any]:
    ranked: dict[int, tuple[float, int | None]] = {score.id: (logprob, None)}
    for rank, (id, top_logprob) in enumerate(score.top[:count], start=1):
        ranked[id] = (top_logprob, rank)
    return {
        str(id): {
            "logprob": shown_logprob(logprob),
            "rank": rank,
            "decoded_token": tokenizer.token_text(id),
        }
        for id, (logprob, rank) in ranked.items()
    }


def _logprob(score: TokenScore) -> float | None:
    return None if score.logprob is None else shown_logprob(score.logprob)


def _as_shown(prompt: PromptPart) -> list[TokenScore]:
    """Return a prompt's scores with each token's text as the prompt's own text has it.

    Decoding writes a BOS that the client did not, and a space before the first word. Where it
    writes characters in another form, which the tokenizer gave them, the client's go to the token.
    """
    shown: list[TokenScore] = []
    position = 0
    for score in prompt.scores:
        # Nothing is passed over for the first token, which may be a BOS that the text lacks.
        start, text = _place(score.text, prompt.text, position, _MOST_REWRITTEN if shown else 0)
        if start > position:
            rest = shown[-1].text + prompt.text[position:start]
            shown[-1] = msgspec.structs.replace(shown[-1], text=rest)
        position = start + len(text)
        shown.append(msgspec.structs.replace(score, text=text))
    return shown


def _place(text: str, whole: str, position: int, most_skipped: int) -> tuple[int, str]:
    """Return where a token is in the ``whole`` text from ``position`` on, and as what."""
    for form in (text, text.removeprefix(" ")):
        if whole.startswith(form, position):
            return position, form
    start = whole.find(text, position, position + most_skipped)
    return (start, text) if start >= 0 else (position, "")


def _offsets(scores: Iterable[TokenScore], start: int) -> list[int]:
    offsets = []
    for score in scores:
        offsets.append(start)
        start += len(score.text)
    return offsets


def _distinct_name(id: int, taken: set[str], tokenizer: Tokenizer) -> str:
    name = tokenizer.token_text(id)
    if name not in taken:
        return name
    raw = tokenizer.token_bytes(id) or b""
    name = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
    while name in taken:  # two ids with the same bytes
        name += f"#{id}"
    return name
