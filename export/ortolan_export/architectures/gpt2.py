"""GPT-2: learned positions, layer norms, linear layers stored transposed."""

from __future__ import annotations

from ortolan_export.architectures.family import Architecture, WeightNames

GPT2 = Architecture(
    model_type="gpt2",
    defaults={
        "hidden_act": "gelu_new",
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    fields={
        "hidden_act": "activation_function",
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    only={
        "add_cross_attention": False,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
    },
    names=WeightNames(
        embedding="transformer.wte",
        positions="transformer.wpe",
        last_norm="transformer.ln_f",
        layer="transformer.h.{layer}.",
        attention_norm="ln_1",
        qkv="attn.c_attn",
        attention_output="attn.c_proj",
        mlp_norm="ln_2",
        gate=None,
        up="mlp.c_fc",
        down="mlp.c_proj",
    ),
    ignored=(".attn.bias", ".attn.masked_bias"),  # masks that old files carry
    norm="layer",
    is_transposed=True,
)
