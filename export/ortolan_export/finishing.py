"""What every route does with a graph that it has written: its texts, and its checks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from ortolan_export.checkpoint import load_tokenizer
from ortolan_export.errors import SourceError
from ortolan_export.progress import Report, counting
from ortolan_export.source import Texts
from ortolan_export.verify import record_golden
from ortolan_runtime.bundle import CHAT_TEMPLATE_NAME, TOKENIZER_NAME, Manifest

# Prose, numbers and code; any tokenizer turns them into something.
_GOLDEN_TEXTS = (
    "The capital of France is",
    "1, 2, 3, 4, 5, 6, 7,",
    "def add(a, b):\n    return a",
)
_READ_BYTES = 1 << 20


def write_texts(folder: Path, texts: Texts) -> None:
    """Write the tokenizer and the chat template into a bundle's folder."""
    (folder / TOKENIZER_NAME).write_text(texts.tokenizer, encoding="utf-8")
    if texts.chat_template is not None:
        (folder / CHAT_TEMPLATE_NAME).write_text(texts.chat_template, encoding="utf-8")


def checked_tokenizer(texts: Texts, vocab_size: int) -> Tokenizer:
    """Return the tokenizer. Raises SourceError for one too large for the model."""
    tokenizer = load_tokenizer(texts.tokenizer, TOKENIZER_NAME)
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= vocab_size:
        raise SourceError(
            f"the tokenizer's largest id must be < {vocab_size}, the model's vocabulary, "
            f"got {largest}; the tokenizer belongs to another model"
        )
    return tokenizer


def within_vocabulary(texts: Texts, vocab_size: int) -> Texts:
    """Return the texts without special tokens that the model does not have.

    Configurations name such where they were left at a family's defaults. The model never says one,
    and cannot be given one.
    """
    bos, eos = texts.bos_token_id, texts.eos_token_ids
    known = range(vocab_size)
    return msgspec.structs.replace(
        texts,
        bos_token_id=bos if bos in known else None,
        eos_token_ids=tuple(token_id for token_id in eos if token_id in known),
    )


def golden_prompts(tokenizer: Tokenizer, context_length: int) -> list[list[int]]:
    """Return short prompts of at least 2 tokens."""
    room = context_length // 2
    prompts = [tokenizer.encode(text).ids[:room] for text in _GOLDEN_TEXTS]
    return [ids if len(ids) >= 2 else [0, 0] for ids in prompts]


def verified(folder: Path, manifest: Manifest, prompts: list[list[int]], say: Report) -> Manifest:
    """Return the manifest with what the graph was seen to compute, and by which version."""
    import onnxruntime

    say("checking the graph", 0, 1)
    golden = record_golden(folder, manifest, prompts)
    say("checking the graph", 1, 1)
    version = str(onnxruntime.__version__)
    return msgspec.structs.replace(manifest, golden=golden, onnxruntime_version=version)


def source_digest(files: Sequence[Path], say: Report) -> str:
    """Return one SHA-256 over the names, sizes and bytes of ``files``, in hex."""
    count = counting(say, "hashing the source", sum(file.stat().st_size for file in files))
    sha256 = hashlib.sha256()
    for file in files:
        sha256.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            while block := stream.read(_READ_BYTES):
                sha256.update(block)
                count(len(block))
    return sha256.hexdigest()
