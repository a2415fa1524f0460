"""Older files and variants of the families: read as what they are, or refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FAMILIES, OPTIONS
from safetensors.numpy import load_file, save_file

from ortolan_export.errors import ExportError, UnsupportedModel
from ortolan_export.native import export
from ortolan_runtime.bundle import GRAPH_NAME, WEIGHTS_NAME

_CASES = {**FAMILIES, **OPTIONS}


@pytest.fixture
def copy_of(make_checkpoint: Any, tmp_path: Path) -> Callable[[str], Path]:
    """Give a function that copies the checkpoint of a case, for the test to change."""

    def copy(case: str) -> Path:
        family, config = _CASES[case]
        source = make_checkpoint(family, **config)
        return Path(shutil.copytree(source, tmp_path / "model"))

    return copy


def _configure(checkpoint: Path, **fields: Any) -> None:
    """Set fields of a config.json; None takes a field away."""
    file = checkpoint / "config.json"
    config = {**json.loads(file.read_text()), **fields}
    kept = {name: value for name, value in config.items() if value is not None}
    file.write_text(json.dumps(kept))


def _rename_tensors(checkpoint: Path, rename: Callable[[str], str], **more: Any) -> None:
    tensors = {
        rename(name): array
        for shard in checkpoint.glob("*.safetensors")
        for name, array in load_file(shard).items()
    }
    for file in (*checkpoint.glob("*.safetensors"), checkpoint / "model.safetensors.index.json"):
        file.unlink(missing_ok=True)
    save_file({**tensors, **more}, checkpoint / "model.safetensors")


def _bytes_of(checkpoint: Path, out: Path) -> tuple[bytes, bytes]:
    export(checkpoint, out, precision="fp32")
    return (out / GRAPH_NAME).read_bytes(), (out / WEIGHTS_NAME).read_bytes()


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        (
            "phi3 past its original length, half of each head rotated",
            {
                "original_max_position_embeddings": 4,
                "partial_rotary_factor": 0.5,
                "rope_scaling": {
                    "type": "longrope",
                    "short_factor": [1.0, 1.1, 1.2, 1.3],
                    "long_factor": [1.0, 2.0, 4.0, 8.0],
                },
                "rope_theta": 10000.0,
            },
        ),
        (
            "gemma3 with scaled rotation on its full layers",
            {
                "layer_types": None,
                "rope_local_base_freq": 10000.0,
                "rope_scaling": {"rope_type": "linear", "factor": 4.0},
                "rope_theta": 1000000.0,
                "sliding_window_pattern": 2,
            },
        ),
        ("gpt_neox", {"rotary_pct": 0.25, "rotary_emb_base": 10000}),
        ("stablelm", {"partial_rotary_factor": 0.25, "rope_theta": 10000}),
        ("qwen3_moe", {"num_experts": 6, "num_local_experts": None, "rope_theta": 10000.0}),
        ("gemma2", {"layer_types": None, "rope_theta": 10000.0}),
        ("cohere2", {"rope_theta": 10000.0}),
    ],
)
def test_an_older_configuration_gives_the_same_bundle(
    case: str, fields: dict[str, Any], copy_of: Any, tmp_path: Path
) -> None:
    checkpoint = copy_of(case)
    expected = _bytes_of(checkpoint, tmp_path / "out")
    _configure(checkpoint, rope_parameters=None, **fields)
    assert _bytes_of(checkpoint, tmp_path / "out") == expected


@pytest.mark.parametrize(
    ("case", "prefix"), [("gpt2", "transformer."), ("llama", "model."), ("opt", "model.")]
)
def test_names_without_their_first_part_give_the_same_graph(
    case: str, prefix: str, copy_of: Any, tmp_path: Path
) -> None:
    checkpoint = copy_of(case)
    _, weights = _bytes_of(checkpoint, tmp_path / "out")
    _rename_tensors(checkpoint, lambda name: name.removeprefix(prefix))
    assert _bytes_of(checkpoint, tmp_path / "out")[1] == weights


@pytest.mark.parametrize(
    ("case", "name", "mask"),
    [
        ("gpt2", "transformer.h.0.attn.bias", np.ones((1, 1, 128, 128), np.float32)),
        ("gpt2", "transformer.h.1.attn.masked_bias", np.array(-1e4, np.float32)),
        ("gpt_neox", "gpt_neox.layers.0.attention.bias", np.ones((1, 1, 128, 128), np.bool_)),
        ("gpt_neox", "gpt_neox.layers.1.attention.rotary_emb.inv_freq", np.ones(2, np.float32)),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", np.ones(8, np.float32)),
    ],
)
def test_masks_and_frequencies_in_old_checkpoints_are_left_out(
    case: str, name: str, mask: Any, copy_of: Any, tmp_path: Path
) -> None:
    checkpoint = copy_of(case)
    expected = _bytes_of(checkpoint, tmp_path / "out")
    _rename_tensors(checkpoint, str, **{name: mask})
    assert _bytes_of(checkpoint, tmp_path / "out") == expected


@pytest.mark.parametrize(
    ("case", "whole"), [("gemma3", "gemma3"), ("mistral without windows", "mistral3")]
)
def test_of_text_and_images_the_text_part_is_exported(
    case: str, whole: str, copy_of: Any, tmp_path: Path
) -> None:
    checkpoint = copy_of(case)
    expected = _bytes_of(checkpoint, tmp_path / "out")
    config = json.loads((checkpoint / "config.json").read_text())
    nested = {"model_type": whole, "text_config": config, "vision_config": {}}
    (checkpoint / "config.json").write_text(json.dumps(nested))
    more = {"vision_tower.patch_embedding.weight": np.ones((3, 3), np.float32)}
    _rename_tensors(checkpoint, lambda name: f"language_model.{name}", **more)
    assert _bytes_of(checkpoint, tmp_path / "out") == expected


@pytest.mark.parametrize(
    ("case", "fields", "words"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "must be False for gpt2, got True"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention must be False"),
        ("gpt2", {"activation_function": "xielu"}, "activation_function must be one of"),
        ("gpt2", {"n_embd": 66}, "n_embd must be a multiple of 4 heads, got 66"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before must be True for opt"),
        ("opt", {"word_embed_proj_dim": 32}, "word_embed_proj_dim must be hidden_size, 64, got 32"),
        ("falcon", {"alibi": True}, "alibi must be False for falcon"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm must be False for stablelm"),
        ("cohere", {"use_qk_norm": True}, "use_qk_norm must be False for cohere"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention must be"),
        ("mixtral", {"hidden_act": "gelu"}, "hidden_act must be 'silu' for mixtral, got 'gelu'"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, r"mlp_only_layers must be \[\] for qwen3_moe"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers must hold 2 values"),
        ("olmo3", {"layer_types": ["full_attention", "chunked_attention"]}, "'chunked_attention'"),
        ("gemma3", {"rope_parameters": {"full_attention": {}}}, "one named sliding_attention"),
        ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": 0.2}}, "an even part of a head"),
        ("phi", {"tie_word_embeddings": True}, "tie_word_embeddings must be False for phi"),
        ("qwen2", {"tie_word_embeddings": None, "vocab_size": None}, "vocab_size is missing"),
    ],
)
def test_a_variant_that_is_not_supported_is_refused_by_name(
    case: str, fields: dict[str, Any], words: str, copy_of: Any, tmp_path: Path
) -> None:
    checkpoint = copy_of(case)
    _configure(checkpoint, **fields)
    with pytest.raises(ExportError, match=words):
        export(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_architecture_is_refused_with_the_list_of_known_ones(
    copy_of: Any, tmp_path: Path
) -> None:
    checkpoint = copy_of("llama")
    _configure(checkpoint, model_type="mamba")
    with pytest.raises(UnsupportedModel, match=r"'mamba' is not supported.*cohere, .*stablelm"):
        export(checkpoint, tmp_path / "out")


def test_learned_positions_end_where_their_table_ends(copy_of: Any, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"must be within 16\.\.128 for this model, got 129"):
        export(copy_of("opt"), tmp_path / "out", context_length=129)
