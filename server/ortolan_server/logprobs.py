"""How scores are shown: names of tokens, maps of the likeliest ones, offsets into the text.

No infinity and no NaN reaches JSON: what is no finite number <= 0 becomes LOWEST or 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ortolan_runtime.events import TokenScore
from ortolan_runtime.text import Tokenizer
from ortolan_server.reply import Piece, PromptPart
from ortolan_server.request import CompletionRequest

LOWEST = -9999.0


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
    return score.text if score.text and name == f" {score.text}" else name


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
    shown = with_prompt and piece.is_first
    prompt = piece.prompt.scores if shown else ()
    scores = (*prompt, *piece.tokens)
    if not scores and piece.finish is None:
        return None
    names = [_prompt_name(score, piece.prompt, tokenizer) for score in prompt[:1]]
    names += [token_name(score, tokenizer) for score in scores[len(names) :]]
    start = len(piece.prompt.text) + piece.offset
    return {
        "tokens": names,
        "token_logprobs": [_logprob(score) for score in scores],
        "top_logprobs": [top_map(score, tokenizer, request.logprobs) for score in scores],
        "text_offset": [*_prompt_offsets(piece.prompt), *_offsets(piece.tokens, start)]
        if shown
        else _offsets(piece.tokens, start),
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


def _prompt_name(first: TokenScore, prompt: PromptPart, tokenizer: Tokenizer) -> str:
    """Return the name of a prompt's first token, "" for a BOS that the text does not show."""
    name = token_name(first, tokenizer)
    return "" if tokenizer.is_special(first.id) and not prompt.text.startswith(name) else name


def _prompt_offsets(prompt: PromptPart) -> list[int]:
    """Return where each token of a prompt begins; one that the text does not show takes no room."""
    offsets = []
    position = 0
    for score in prompt.scores:
        offsets.append(position)
        if prompt.text.startswith(score.text, position):
            position += len(score.text)
    return offsets


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
