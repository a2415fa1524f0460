"""A GGUF file's settings become those of a config.json, what llama.cpp knows by heart included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ortolan_export.errors import SourceError, UnsupportedModel
from ortolan_export.gguf_families import Metadata, find_family, read_config


def _config(architecture: str, divisors: dict[str, Any] | None = None, **own: Any) -> Any:
    sizes = {
        "context_length": 8192,
        "embedding_length": 4608,
        "block_count": 4,
        "feed_forward_length": 36864,
        "attention.head_count": 32,
        "attention.head_count_kv": 16,
        "attention.key_length": 128,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    own = {name.replace("__", "."): value for name, value in own.items()}
    fields = {f"{architecture}.{name}": value for name, value in {**sizes, **own}.items()}
    metadata = Metadata(Path("m.gguf"), fields, architecture)
    return read_config(
        find_family(metadata),
        metadata,
        vocab_size=1000,
        is_tied=True,
        divisors=divisors or {},
    )


@pytest.mark.parametrize(
    ("architecture", "layers", "scalar"),
    [
        ("gemma2", 42, 128),  # 9B: the size of a head
        ("gemma2", 46, 144),  # 27B: what a head gets of the residual stream
        ("gemma3", 34, 128),
        ("gemma3", 62, 144),
    ],
)
def test_gemma_of_27b_scales_attention_by_the_residual_stream(
    architecture: str, layers: int, scalar: float
) -> None:
    assert _config(architecture, block_count=layers)["query_pre_attn_scalar"] == scalar


def test_a_scale_of_attention_in_the_file_goes_first() -> None:
    assert _config("gemma3", attention__scale=0.25)["query_pre_attn_scalar"] == 16


def test_gemma3_scales_the_rotation_of_its_full_layers_alone() -> None:
    config = _config("gemma3", rope__scaling__type="linear", rope__scaling__factor=8.0)
    assert config["rope_parameters"] == {
        "full_attention": {"rope_theta": 1000000.0, "rope_type": "linear", "factor": 8.0},
        "sliding_attention": {"rope_theta": 10000.0},
    }
    assert config["sliding_window_pattern"] == 6


def test_gemma2_has_its_soft_caps_without_being_told() -> None:
    config = _config("gemma2")
    assert (config["attn_logit_softcapping"], config["final_logit_softcapping"]) == (50.0, 30.0)


def test_a_window_of_0_is_none() -> None:
    assert _config("phi3", attention__sliding_window=0)["sliding_window"] is None
    assert _config("phi3", attention__sliding_window=2047)["sliding_window"] == 2047


def test_yarn_keeps_its_bounds() -> None:
    config = _config(
        "qwen3",
        rope__freq_base=1e6,
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=32768,
        rope__scaling__yarn_beta_fast=16.0,
    )
    assert config["rope_parameters"] == {
        "rope_theta": 1e6,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "beta_fast": 16.0,
    }


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"expert_count": 8}, "llama.expert_count must be 0 or absent, got 8"),
        ({"rope__dimension_count": 64}, "llama.rope.dimension_count must be the size of a head"),
        ({"attention__temperature_scale": 0.1}, "attention.temperature_scale must be 0 or absent"),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__attn_factor": 1.2},
            "rope.scaling.attn_factor must be 1.0, got 1.2",
        ),
    ],
)
def test_settings_of_other_models_are_refused_by_name(own: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        _config("llama", **own)


def test_an_unknown_architecture_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(UnsupportedModel, match="one of gemma, gemma2, .*qwen3, got 'gemma3n'"):
        _config("gemma3n")


def test_a_size_that_is_missing_is_named() -> None:
    with pytest.raises(SourceError, match="qwen2.block_count must be a whole number >= 1"):
        _config("qwen2", block_count=None)


def test_a_size_for_each_layer_is_refused_by_the_files_own_name() -> None:
    with pytest.raises(SourceError, match=r"qwen2.attention.head_count_kv must be .* got \[8, 4\]"):
        _config("qwen2", attention__head_count_kv=[8, 4])
