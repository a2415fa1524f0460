"""Phi-1 to 2 (layers in parallel, biases everywhere) and Phi-3 to 4 (a packed Llama)."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture, WeightNames
from ortolan_export.architectures.windows import every_layer

PHI = Architecture(
    model_type="phi",
    defaults={
        "hidden_act": "gelu_new",
        "max_position_embeddings": 2048,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    fields={"rms_norm_eps": "layer_norm_eps"},
    only={"qk_layernorm": False, "tie_word_embeddings": False},
    names=WeightNames(
        last_norm="model.final_layernorm",
        attention_output="self_attn.dense",
        mlp_norm=None,
        gate=None,
        up="mlp.fc1",
        down="mlp.fc2",
    ),
    norm="layer",
    is_parallel=True,
)
PHI3 = Architecture(
    model_type="phi3",
    defaults={
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "partial_rotary_factor": 1.0,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    names=WeightNames(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj"),
    windows=every_layer,
)
