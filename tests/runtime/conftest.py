"""Hypothesis settings, tokenizers and engines for the tests of the runtime."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tokenizers
from hypothesis import settings
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

sys.path.insert(0, str(Path(__file__).parent))

from engines import engine_on

from ortolan_runtime.engine import Engine
from ortolan_runtime.text import Tokenizer
from scripted import by_token, byte_ids, byte_level_tokenizer, write_bundle

# The machine's speed is no property of the code, so no deadline; the same examples on every run,
# so that a failure in CI is a failure everywhere.
settings.register_profile("runtime", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("runtime")

MakeTokenizer = Callable[[str], Tokenizer]

_SPECIALS = ["<s>", "</s>"]
_CORPUS = ["Hello world, hello words. The €uro costs é in Zürich — 漢字 漢字 👩🏽‍🚀 👩🏽‍🚀"] * 4


@pytest.fixture(scope="session")
def make_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> MakeTokenizer:
    """Give a function that makes a small tokenizer with BOS <s> and EOS </s>.

    ``byte-level`` is GPT-2's kind. The others are SentencePiece's, with byte fallback: ``llama``
    strips the first space, ``gemma`` does not, ``metaspace`` leaves it to the decoder of that name.
    """
    made: dict[str, Tokenizer] = {}

    def make(kind: str) -> Tokenizer:
        if kind not in made:
            raw = _byte_level() if kind == "byte-level" else _sentencepiece(kind)
            bos, eos = (raw.token_to_id(token) for token in _SPECIALS)
            raw.post_processor = processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", bos)]
            )
            path = tmp_path_factory.mktemp("tokenizer") / f"{kind}.json"
            raw.save(str(path))
            made[kind] = Tokenizer(path, bos_token_id=bos, eos_token_ids=(eos,))
        return made[kind]

    return make


def _byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def _sentencepiece(kind: str) -> tokenizers.Tokenizer:
    pieces = ["\u2581", *"Hel wordtThabcxyé,.", "\u2581w", "\u2581H", "el", "lo", "or", "ld", "漢"]
    merges = [("\u2581", "w"), ("\u2581", "H"), ("e", "l"), ("l", "o"), ("o", "r"), ("l", "d")]
    tokens = [*_SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocab = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True)
    )
    tokenizer.add_special_tokens(_SPECIALS)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        steps = [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
    else:
        replace = normalizers.Replace(" ", "\u2581")
        prepend = [normalizers.Prepend("\u2581")] if kind == "llama" else []
        tokenizer.normalizer = normalizers.Sequence([*prepend, replace])
    if kind == "llama":
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


@pytest.fixture(scope="session")
def alphabet_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a bundle that says the alphabet: "a" is followed by "b", and "z" by the EOS."""
    raw = byte_level_tokenizer()
    ids = [byte_ids(raw)[byte] for byte in b"abcdefghijklmnopqrstuvwxyz"]
    eos = raw.token_to_id("<eos>")
    table = by_token(raw.get_vocab_size(), dict(zip(ids, [*ids[1:], eos], strict=True)))
    folder = tmp_path_factory.mktemp("alphabet") / "alphabet"
    return write_bundle(
        folder, raw, token_table=table, eos=(eos,), context_length=128, name="alphabet"
    )


@pytest.fixture(scope="module")
def engine(alphabet_bundle: Path) -> Iterator[Engine]:
    """Give an engine that says the alphabet."""
    with engine_on(alphabet_bundle, slots=4) as engine:
        yield engine
