"""A tiny configuration for every architecture and option that the exporter knows."""

from __future__ import annotations

from typing import Any

_LINEAR = {"rope_type": "linear", "factor": 4.0}
_DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_DEEPSEEK_YARN = {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 16.0}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0],
    "original_max_position_embeddings": 32,
}
_MIXED_LAYERS = ["full_attention", "sliding_attention"]

_SHORT_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
}
_GEMMA = {
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "sliding_window": 8,
    "tie_word_embeddings": True,
}
_GRANITE = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 6.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.4,
}
_QWEN3_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GPT_OSS = {
    "layer_types": _MIXED_LAYERS,
    "rope_scaling": {**_YARN, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0},
    "swiglu_limit": 0.5,
}

Case = tuple[str, dict[str, Any]]

# One case that stands for each family: what tests of precisions and the table of the docs run.
FAMILIES: dict[str, Case] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 8}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "phi3": ("phi3", {"sliding_window": 8}),
    "phi": ("phi", {}),
    "gemma": ("gemma", {"tie_word_embeddings": True}),
    "gemma2": ("gemma2", {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("gemma3_text", {**_GEMMA, "layer_types": _MIXED_LAYERS}),
    "gpt2": ("gpt2", {"tie_word_embeddings": True}),
    "gpt_neox": ("gpt_neox", {}),
    "opt": ("opt", {"ffn_dim": 96, "tie_word_embeddings": True}),
    "falcon": ("falcon", {"tie_word_embeddings": True}),
    "granite": ("granite", _GRANITE),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": 8, "layer_types": _MIXED_LAYERS}),
    "stablelm": ("stablelm", {"use_qkv_bias": True}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "cohere": ("cohere", {"logit_scale": 0.7, "tie_word_embeddings": True}),
    "cohere2": (
        "cohere2",
        {"logit_scale": 0.7, "sliding_window": 8, "layer_types": _MIXED_LAYERS},
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "qwen3_moe": ("qwen3_moe", {**_QWEN3_MOE, "norm_topk_prob": True}),
    "gpt_oss": (
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, **_GPT_OSS},
    ),
}

OPTIONS: dict[str, Case] = {
    "llama with an untied head": ("llama", {}),
    "llama with attention biases": ("llama", {"attention_bias": True}),
    "llama with mlp biases": ("llama", {"mlp_bias": True}),
    "llama without grouped heads": ("llama", {"num_key_value_heads": 4}),
    "llama with gelu": ("llama", {"hidden_act": "gelu"}),
    "llama with tanh gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama with relu": ("llama", {"hidden_act": "relu"}),
    "mistral without windows": ("mistral", {"sliding_window": None}),
    "qwen2 with a window on its last layer": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3 with a window by layer types": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": _MIXED_LAYERS},
    ),
    "qwen3 with attention biases": ("qwen3", {"attention_bias": True}),
    "linear rope": ("llama", {"rope_scaling": _LINEAR}),
    "dynamic rope": ("llama", {"rope_scaling": _DYNAMIC}),
    "llama3 rope": ("llama", {"rope_scaling": _LLAMA3}),
    "yarn rope": ("qwen3", {"rope_scaling": _YARN}),
    "yarn rope with magnitudes": ("llama", {"rope_scaling": _DEEPSEEK_YARN}),
    "yarn rope without rounding": ("llama", {"rope_scaling": {**_YARN, "truncate": False}}),
    "long rope past its original length": (
        "llama",
        {"rope_scaling": {**LONGROPE, "original_max_position_embeddings": 4}},
    ),
    "phi3 without windows": ("phi3", {}),
    "phi3 past its original length, half of each head rotated": (
        "phi3",
        {
            "original_max_position_embeddings": 4,
            "partial_rotary_factor": 0.5,
            "rope_scaling": _SHORT_LONGROPE,
        },
    ),
    "gemma whose gelu means its approximation": ("gemma", {"hidden_act": "gelu"}),
    "gemma2 with the windows of its family": ("gemma2", _GEMMA),
    "gemma3 with scaled rotation on its full layers": (
        "gemma3_text",
        {**_GEMMA, "rope_scaling": _LINEAR, "sliding_window_pattern": 2},
    ),
    "gpt2 with a narrow mlp": ("gpt2", {"n_inner": 96, "activation_function": "relu"}),
    "gpt_neox with layers one after the other": ("gpt_neox", {"use_parallel_residual": False}),
    "gpt_neox with whole heads rotated": (
        "gpt_neox",
        {"attention_bias": False, "hidden_act": "gelu_fast", "rotary_pct": 1.0},
    ),
    "opt without biases": ("opt", {"enable_bias": False, "activation_function": "gelu"}),
    "falcon with biases": ("falcon", {"bias": True, "ffn_hidden_size": 96}),
    "falcon of the new architecture": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "falcon of the new architecture with one norm": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon with layers one after the other": ("falcon", {"parallel_attn": False}),
    "falcon with a key for each query": ("falcon", {"multi_query": False}),
    "granite with a tied head": ("granite", {**_GRANITE, "tie_word_embeddings": True}),
    "stablelm with parallel layers": ("stablelm", {"use_parallel_residual": True}),
    "smollm3 with windows where it does not rotate": (
        "smollm3",
        {"no_rope_layer_interval": 2, "sliding_window": 8, "use_sliding_window": True},
    ),
    "mixtral with windows": ("mixtral", {"num_local_experts": 3, "sliding_window": 8}),
    "qwen3_moe whose weights do not sum to 1": ("qwen3_moe", _QWEN3_MOE),
}
