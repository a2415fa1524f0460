"""Builds bundles whose model follows a script, to force what a real model does once in a million.

The logits of a position are a row of one table, chosen by the token there, plus a row of another,
chosen by the position. Everything else (tokenizer, KV cache, sampling, text) is the real thing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from ortolan_runtime.bundle import (
    CHAT_TEMPLATE_NAME,
    GRAPH_NAME,
    TOKENIZER_NAME,
    Manifest,
    write_manifest,
)

Table = npt.NDArray[np.float32]

LIKELY = 20.0  # logit of the scripted token above the others: its probability is 1 - 1e-7


def byte_level_tokenizer(*words: str, bos: bool = False) -> Tokenizer:
    """Return a byte-level BPE: 256 bytes, <eos>, <bos>, <e2>, then ``words`` merged from bytes.

    With ``bos`` every text begins with <bos>.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    tokens = ["<eos>", "<bos>", "<e2>"]
    vocab |= {token: len(vocab) + index for index, token in enumerate(tokens)}
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merges = _merges([split.pre_tokenize_str(word)[0][0] for word in words], vocab)
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(tokens)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", vocab["<bos>"])]
        )
    return tokenizer


def byte_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the id of each byte in a tokenizer of ``byte_level_tokenizer``."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    ids = [tokenizer.token_to_id(characters[byte]) for byte in range(256)]
    assert None not in ids
    return ids


def sentencepiece_tokenizer(*words: str) -> Tokenizer:
    """Return a BPE in SentencePiece's manner: U+2581 for spaces, byte fallback, <s> in front."""
    specials = ["<unk>", "<s>", "</s>"]
    vocab = {token: index for index, token in enumerate(specials)}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    letters = "\u2581abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?[]/"
    vocab |= {letter: len(vocab) + index for index, letter in enumerate(letters)}
    merges = _merges([word.replace(" ", "\u2581") for word in words], vocab)
    tokenizer = Tokenizer(
        BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(specials)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def by_token(vocab: int, following: Mapping[int, int]) -> Table:
    """Return a table float32 ``[vocab, vocab]`` in which each token is followed as told.

    Tokens that are not told of are followed by anything, a little unevenly.
    """
    table = np.random.default_rng(7).normal(size=(vocab, vocab)).astype(np.float32)
    for token, next_token in following.items():
        table[token, next_token] = LIKELY
    return table


def readable(table: Table, tokenizer: Tokenizer) -> Table:
    """Return ``table`` with all tokens banned but those that are printable ASCII."""
    tokens = [tokenizer.decode([id], skip_special_tokens=True) for id in range(table.shape[1])]
    banned = [
        id for id, text in enumerate(tokens) if not (text.isascii() and text.isprintable() and text)
    ]
    table[:, banned] = -50.0
    return table


def by_position(vocab: int, scripts: Mapping[int, Sequence[int]]) -> Table:
    """Return a table float32 ``[positions, vocab]`` that says each script after a position.

    ``scripts`` maps the length of a prompt to the tokens that follow it; -1 is a row of NaN.
    """
    length = 1 + max(start + len(tokens) for start, tokens in scripts.items())
    table = np.zeros((length, vocab), np.float32)
    for start, tokens in scripts.items():
        for position, token in enumerate(tokens, start=start - 1):
            if token < 0:
                table[position] = np.nan
            else:
                table[position, token] = 2 * LIKELY
    return table


def write_bundle(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    token_table: Table,
    position_table: Table | None = None,
    eos: Sequence[int] = (),
    bos: int | None = None,
    context_length: int = 256,
    name: str = "scripted",
    chat_template: str | None = None,
) -> Path:
    """Write a bundle that follows the tables; positions beyond the second one repeat its last."""
    vocab = token_table.shape[1]
    if position_table is None:
        position_table = np.zeros((1, vocab), np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / TOKENIZER_NAME))
    if chat_template is not None:
        (folder / CHAT_TEMPLATE_NAME).write_text(chat_template)
    onnx.save(_graph(token_table, position_table), str(folder / GRAPH_NAME))
    manifest = Manifest(
        name=name,
        architecture="scripted",
        source_digest=name,
        precision="fp32",
        context_length=context_length,
        vocab_size=vocab,
        layers=1,
        kv_heads=1,
        head_size=1,
        single_row_exact=True,
        bos_token_id=bos,
        eos_token_ids=tuple(eos),
        exporter_version="0",
    )
    write_manifest(folder, manifest)
    return folder


def write_babbling_bundle(
    folder: Path, *, name: str = "babbling", context_length: int = 1 << 16
) -> Path:
    """Write a bundle that says anything readable and never ends by itself; return its folder."""
    tokenizer = byte_level_tokenizer("hello", " world")
    table = readable(by_token(tokenizer.get_vocab_size(), {}), tokenizer)
    return write_bundle(
        folder, tokenizer, token_table=table, context_length=context_length, name=name
    )


def _merges(words: Sequence[str], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Return merges that make each word out of its characters, and put the steps into ``vocab``."""
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append((word[: end - 1], word[end - 1]))
    return merges


def _graph(token_table: Table, position_table: Table) -> onnx.ModelProto:
    vocab = token_table.shape[1]
    node = helper.make_node
    nodes = [
        node("Reshape", ["input_ids", "minus_one"], ["flat_ids"]),
        node("Gather", ["flat_ids", "logit_positions"], ["ids"]),
        node("Gather", ["token_table", "ids"], ["by_token"]),
        node("Shape", ["input_ids"], ["count"], start=1, end=2),
        node("Squeeze", ["count"], ["count_scalar"]),
        node("Range", ["zero", "count_scalar", "one"], ["columns"]),
        node("Cast", ["seqlens_k"], ["lasts"], to=TensorProto.INT64),
        node("Unsqueeze", ["lasts", "one_axis"], ["last_column"]),
        node("Sub", ["count_scalar", "one"], ["count_less"]),
        node("Sub", ["last_column", "count_less"], ["firsts"]),
        node("Add", ["firsts", "columns"], ["positions"]),
        node("Min", ["positions", "last_position"], ["clipped"]),
        node("Reshape", ["clipped", "minus_one"], ["flat_positions"]),
        node("Gather", ["flat_positions", "logit_positions"], ["wanted"]),
        node("Gather", ["position_table", "wanted"], ["by_position"]),
        node("Add", ["by_token", "by_position"], ["logits"]),
        node("Identity", ["past.0.key"], ["present.0.key"]),
        node("Identity", ["past.0.value"], ["present.0.value"]),
    ]
    constants = {
        "token_table": token_table,
        "position_table": position_table,
        "minus_one": np.array([-1], np.int64),
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "one_axis": np.array([1], np.int64),
        "last_position": np.array(len(position_table) - 1, np.int64),
    }
    cache = [(f"0.{kind}", TensorProto.FLOAT, ["B", 1, "L", 1]) for kind in ("key", "value")]
    value = helper.make_tensor_value_info
    inputs = [
        value("input_ids", TensorProto.INT64, ["B", "S"]),
        value("seqlens_k", TensorProto.INT32, ["B"]),
        value("total_sequence_length", TensorProto.INT32, []),
        value("logit_positions", TensorProto.INT64, ["R"]),
        *(value(f"past.{name}", kind, shape) for name, kind, shape in cache),
    ]
    outputs = [
        value("logits", TensorProto.FLOAT, ["R", vocab]),
        *(value(f"present.{name}", kind, shape) for name, kind, shape in cache),
    ]
    graph = helper.make_graph(
        nodes,
        "scripted",
        inputs,
        outputs,
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
