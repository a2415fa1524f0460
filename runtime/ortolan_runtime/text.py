"""Text in and out: the tokenizer, and decoding token by token up to a stop string.

What a stream says joined together is what decoding the prompt and the output at once adds to
decoding the prompt alone: bytes are held until their character is whole, and a word keeps its
leading space.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import tokenizers

from ortolan_runtime.bundle import Bundle
from ortolan_runtime.errors import BundleError, InvalidParameter
from ortolan_runtime.events import TokenScore
from ortolan_runtime.stops import StopMatcher

REPLACEMENT = "\ufffd"

# Tokens of context before the first one that is decoded: enough for any decoder's look-behind.
_CONTEXT_TOKENS = 6
# A text that is nothing but broken characters has no better place to begin.
_MAX_CONTEXT_TOKENS = 48
# Longer prompts are decoded as a batch of one, which costs more for a few tokens.
_MANY_IDS = 4096


class _Document(msgspec.Struct):
    """What is read of ``tokenizer.json`` itself: how ids become text."""

    decoder: msgspec.Raw = msgspec.Raw(b"null")


class Tokenizer:
    """A ``tokenizer.json`` with the ids that begin and end a sequence."""

    def __init__(
        self, path: Path, *, bos_token_id: int | None, eos_token_ids: Iterable[int]
    ) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as exc:  # the library raises bare Exception
            raise BundleError(f"{path} is no tokenizer that can be read: {exc}") from exc
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {id for id, token in added.items() if token.special}
        # The library tells it only with its whole vocabulary as JSON: 0.15 s for 150,000 tokens.
        decoder = bytes(msgspec.json.decode(path.read_bytes(), type=_Document).decoder)
        self._byte_level = _byte_level_alphabet() if b'"ByteLevel"' in decoder else {}
        self._byte_tokens = self._fallback_bytes() if b'"ByteFallback"' in decoder else {}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of ``text``; no BOS is put in front of one that the text has itself.

        Takes about 0.5 s for 1 MB. Raises InvalidParameter on a lone surrogate.
        """
        try:
            # `encode` would hold the GIL all the while, and takes twice as long for its offsets.
            (encoding,) = self._tokenizer.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
            ids: list[int] = encoding.ids
        except (UnicodeEncodeError, TypeError) as exc:  # which one depends on the library's version
            raise InvalidParameter("prompt", "must hold no lone surrogate", text) from exc
        has_two = self.bos_token_id is not None and ids[:2] == [self.bos_token_id] * 2
        return ids[1:] if add_special_tokens and has_two else ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``ids``; bytes that form no character become U+FFFD."""
        if len(ids) > _MANY_IDS:
            # `decode` would hold the GIL all the while, which is longer than all else takes.
            (text,) = self._tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        else:
            text = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return str(text)

    def is_special(self, id: int) -> bool:
        """Return whether ``id`` is a control token such as BOS or EOS."""
        return id in self._special

    def special_tokens(self, texts: Iterable[str]) -> dict[int, str]:
        """Return the control tokens that are spelt like one of ``texts``, with their spelling."""
        spelt = {self._tokenizer.token_to_id(text): text for text in texts}
        return {id: text for id, text in spelt.items() if id in self._special}

    def is_token(self, id: int) -> bool:
        """Return whether ``id`` is in the vocabulary; logits may have more columns."""
        return self._tokenizer.id_to_token(id) is not None

    def is_byte_fallback(self, id: int) -> bool:
        """Return whether ``id`` stands for one byte of a SentencePiece vocabulary, as in <0x0A>."""
        return id in self._byte_tokens

    def token_bytes(self, id: int) -> bytes | None:
        """Return the bytes that token ``id`` stands for, or None when ``id`` is no token."""
        if id in self._byte_tokens:
            return self._byte_tokens[id]
        piece: str | None = self._tokenizer.id_to_token(id)
        if piece is None:
            return None
        if self._byte_level and id not in self._special:
            mapped = [self._byte_level.get(character) for character in piece]
            if None not in mapped:
                return bytes(byte for byte in mapped if byte is not None)
        return piece.replace("\u2581", " ").encode("utf-8", errors="replace")

    def token_text(self, id: int) -> str:
        r"""Return how token ``id`` is shown alone: its text, else ``bytes:\xNN…``."""
        raw = self.token_bytes(id)
        if raw is None:
            return ""
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _fallback_bytes(self) -> dict[int, bytes]:
        ids = ((self._tokenizer.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256))
        return {id: bytes([byte]) for id, byte in ids if id is not None}


def open_tokenizer(bundle: Bundle) -> Tokenizer:
    """Return a bundle's tokenizer. Raises BundleError when the logits lack columns for it."""
    manifest, path = bundle.manifest, bundle.tokenizer_path
    tokenizer = Tokenizer(
        path, bos_token_id=manifest.bos_token_id, eos_token_ids=manifest.eos_token_ids
    )
    if tokenizer.vocab_size > manifest.vocab_size:
        raise BundleError(
            f"{path} must have at most {manifest.vocab_size} tokens, the columns of the logits, "
            f"got {tokenizer.vocab_size}; export the model again"
        )
    return tokenizer


class IncrementalDecoder:
    """Turns one sequence's tokens into text, piece by piece.

    ``prompt`` are the ids before the first token; they set the context in which it is decoded.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window = self._context(prompt)
        # What was said so far by the window's tokens, the prompt's among them.
        self._said = self._decode(self._window)
        self.is_holding = False  # whether the last token's text is out without its last character

    def push(self, id: int) -> str:
        """Return the text that token ``id`` completes, "" while a character is unfinished."""
        self._window.append(id)
        return self._say(self._stable_text())

    def settle(self, id: int) -> str:
        """Return the held text that is final because ``id``, which is pushed next, is no byte.

        It is the text of the tokens before ``id``, which would else bring it along.
        """
        is_over = not self._may_change(id) and self._holds_bytes()
        return self.flush() if is_over else ""

    def flush(self) -> str:
        """Return what is still held; an unfinished character becomes U+FFFD."""
        return self._say(self._decode(self._window))

    def _say(self, text: str) -> str:
        """Return what ``text`` says beyond what was said.

        The prompt's last character may change when the output completes it, or spoils it.
        """
        if self._said.startswith(text):
            return ""
        is_longer = text.startswith(self._said)
        kept = len(self._said) if is_longer else len(os.path.commonprefix((self._said, text)))
        new = text[kept:]
        self._said = text
        self._forget(text)
        return new

    def _forget(self, text: str) -> None:
        """Drop tokens from the window's start that decoding the next ones does not need."""
        if len(self._window) < 4 * _CONTEXT_TOKENS or self._decode(self._window) != text:
            return
        self._window = self._context(self._window)
        self._said = self._decode(self._window)

    def _context(self, ids: Sequence[int]) -> list[int]:
        """Return the last ids whose text is not empty and does not begin inside a character."""
        start = max(0, len(ids) - _CONTEXT_TOKENS)
        while start > 0 and not self._is_context(ids[start:]):
            if len(ids) - start >= _MAX_CONTEXT_TOKENS and not self._may_change(ids[start]):
                break
            start = max(0, start - _CONTEXT_TOKENS)
        return list(ids[start:])

    def _is_context(self, ids: Sequence[int]) -> bool:
        if self._may_change(ids[0]):
            return False
        return self._decode(ids)[:1] not in ("", REPLACEMENT)

    def _stable_text(self) -> str:
        """Return the window's text that no later token can change."""
        end = len(self._window)
        while end > 0 and self._may_change(self._window[end - 1]):
            end -= 1
        text = self._decode(self._window[:end])
        self.is_holding = text.endswith(REPLACEMENT)
        return text[:-1] if self.is_holding else text

    def _may_change(self, id: int) -> bool:
        """Return whether later tokens can change the text of ``id``, or it has none to change.

        The fallback decoder replaces a whole run of bytes when any of them is wrong; a token
        without text does not end the run.
        """
        if self._skip_special_tokens and self._tokenizer.is_special(id):
            return True
        return self._tokenizer.is_byte_fallback(id) or not self._tokenizer.is_token(id)

    def _holds_bytes(self) -> bool:
        """Return whether the window ends in a run of the fallback's bytes."""
        for id in reversed(self._window):
            if self._tokenizer.is_byte_fallback(id):
                return True
            if not self._may_change(id):
                return False
        return False

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens)


class TextStream:
    """One sequence's output: tokens go in, final text and the tokens that made it come out.

    No stop string ends in the text of the first ``min_tokens`` tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        self._decoder = IncrementalDecoder(
            tokenizer, prompt, skip_special_tokens=skip_special_tokens
        )
        self._tokens_to_spare = min_tokens
        self._matcher = StopMatcher(stop, include_stop=include_stop)
        self._pending: list[TokenScore] = []
        self._pending_characters = 0  # of released text that no released token accounts for yet
        self.has_stopped = False

    def push(self, token: TokenScore) -> tuple[str, tuple[TokenScore, ...]]:
        """Take a generated token; return the text that is final now and the tokens it completes."""
        settled = self._decoder.settle(token.id)
        self._say_of_last(settled)
        piece = self._decoder.push(token.id)
        self._pending.append(msgspec.structs.replace(token, text=piece))
        text = self._match(settled + piece)
        self._tokens_to_spare -= 1
        return text, self._cut(text) if self.has_stopped else self._release(text)

    def finish(self, last: TokenScore | None = None) -> tuple[str, tuple[TokenScore, ...]]:
        """Return everything that is held, at an ending that is no stop string; call once.

        ``last`` is the token that ended the sequence, such as EOS, with the text that it is to add.
        """
        rest = self._decoder.flush()
        self._say_of_last(rest)
        text = self._match(rest)
        if self.has_stopped:
            return text, self._cut(text)
        text += self._matcher.flush()
        if last is not None:
            self._pending.append(last)
            text += last.text
        tokens, self._pending = tuple(self._pending), []
        return text, tokens

    def _say_of_last(self, rest: str) -> None:
        """Give text that was held to the last token that was held."""
        if rest:
            last = self._pending[-1]
            self._pending[-1] = msgspec.structs.replace(last, text=last.text + rest)

    def _match(self, piece: str) -> str:
        """Return the text that ``piece`` makes final."""
        if self._tokens_to_spare > 0:
            return self._matcher.spare(piece)
        text, self.has_stopped = self._matcher.push(piece)
        return text

    def _release(self, text: str) -> tuple[TokenScore, ...]:
        """Return the pending tokens whose text lies wholly in what has been released."""
        self._pending_characters += len(text)
        count = whole = end = 0
        complete = self._pending[:-1] if self._decoder.is_holding else self._pending
        for index, token in enumerate(complete):
            end += len(token.text)
            if end > self._pending_characters:
                break
            if token.text:  # one without text may be the beginning of the next one's character
                count, whole = index + 1, end
        self._pending_characters -= whole
        released, self._pending = tuple(self._pending[:count]), self._pending[count:]
        return released

    def _cut(self, text: str) -> tuple[TokenScore, ...]:
        """Return the pending tokens up to the end of ``text``, the last one cut with it."""
        room = self._pending_characters + len(text)
        kept = []
        for token in self._pending:
            if room == 0:
                break
            kept.append(msgspec.structs.replace(token, text=token.text[:room]))
            room -= len(kept[-1].text)
        self._pending = []
        return tuple(kept)


def _byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's map from printable characters to the bytes that they stand for."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet
