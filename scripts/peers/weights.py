"""One model with random weights, the same numbers for every contender.

The shape is Qwen2.5-0.5B's. Speed does not depend on what weights say, but sampling depends on how
flat the logits are, so the last norm's gain makes them about as peaked as a trained model's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

Weights = npt.NDArray[np.float32]

# Chosen by trial, in int8: the likeliest 256 tokens hold 95 % of a row, as they do for the default
# model on prose. Its median entropy is then about 3.5 nats against 2.6: no one gain matches both.
_LOGIT_DEVIATION = 5.2
_SPECIAL_TOKENS = ("<bos>", "<eos>")
_PRINTABLE_ASCII = range(33, 127)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Qwen2 model whose head is tied to its embedding."""

    layers: int = 24
    hidden: int = 896
    heads: int = 14
    kv_heads: int = 2
    head_size: int = 64
    intermediate: int = 4864
    vocabulary: int = 151_936
    context: int = 4096
    rope_base: float = 1e6
    norm_epsilon: float = 1e-6


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight under its names in both file formats, float32 but exact in bfloat16."""

    huggingface: str
    gguf: str
    values: Weights


def tensors_of(shape: Shape) -> Iterator[list[Tensor]]:
    """Yield the model's weights, those outside the layers first and then layer by layer."""
    yield [
        _matrix("model.embed_tokens", "token_embd", shape.vocabulary, shape.hidden),
        Tensor("model.norm.weight", "output_norm.weight", _gain(shape.hidden, _LOGIT_DEVIATION)),
    ]
    for layer in range(shape.layers):
        yield list(_layer(shape, layer))


def _layer(shape: Shape, layer: int) -> Iterator[Tensor]:
    theirs, ours = f"blk.{layer}.", f"model.layers.{layer}."
    hidden, wide = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    for norm, name in (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")):
        yield Tensor(f"{ours}{norm}.weight", f"{theirs}{name}.weight", _gain(hidden, 1.0))
    for letter, rows in (("q", queries), ("k", keys), ("v", keys)):
        linear, name = f"{ours}self_attn.{letter}_proj", f"{theirs}attn_{letter}"
        yield _matrix(linear, name, rows, hidden)
        yield Tensor(f"{linear}.bias", f"{name}.bias", _random(linear + ".bias", (rows,), 0.1))
    yield _matrix(f"{ours}self_attn.o_proj", f"{theirs}attn_output", hidden, queries)
    yield _matrix(f"{ours}mlp.gate_proj", f"{theirs}ffn_gate", wide, hidden)
    yield _matrix(f"{ours}mlp.up_proj", f"{theirs}ffn_up", wide, hidden)
    yield _matrix(f"{ours}mlp.down_proj", f"{theirs}ffn_down", hidden, wide)


def _matrix(huggingface: str, gguf: str, rows: int, columns: int) -> Tensor:
    # This deviation keeps the variance of activations through a linear layer.
    values = _random(huggingface, (rows, columns), columns**-0.5)
    return Tensor(f"{huggingface}.weight", f"{gguf}.weight", values)


def _random(name: str, size: tuple[int, ...], deviation: float) -> Weights:
    """Return values that depend on the tensor's name alone, so that order does not matter."""
    generator = np.random.default_rng(list(name.encode()))
    values = generator.standard_normal(size, dtype=np.float32) * np.float32(deviation)
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def _gain(size: int, value: float) -> Weights:
    return np.full(size, value, ml_dtypes.bfloat16).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A byte-level BPE: ``tokens`` in the order of their ids, special ones last."""

    tokens: list[str]
    merges: list[tuple[str, str]]

    @property
    def bos_id(self) -> int:
        """Return the id of the token that begins a text."""
        return len(self.tokens) - 2

    @property
    def eos_id(self) -> int:
        """Return the id of the token that ends a text."""
        return len(self.tokens) - 1


def vocabulary_of(size: int) -> Vocabulary:
    """Return a vocabulary of ``size`` tokens: the bytes, and ASCII strings of two and three.

    Every token but the bytes above 127 is whole text, so nearly each step has text to send.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = [chr(code) for code in _PRINTABLE_ASCII]
    pairs = [(one, two) for one in letters for two in letters]
    triples = [(one + two, three) for one, two in pairs for three in letters]
    merges = (pairs + triples)[: size - len(alphabet) - len(_SPECIAL_TOKENS)]
    tokens = [*alphabet, *(one + two for one, two in merges), *_SPECIAL_TOKENS]
    if len(tokens) != size:
        raise ValueError(f"the vocabulary must have {size} tokens, got {len(tokens)}")
    return Vocabulary(tokens, merges)


def tokenizer_of(vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer of a vocabulary, as tokenizer.json holds it."""
    plain = vocabulary.tokens[: -len(_SPECIAL_TOKENS)]
    model = BPE(vocab={token: i for i, token in enumerate(plain)}, merges=vocabulary.merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL_TOKENS])
    return tokenizer
