"""The configs of the catalog's models: what their config.json says where transformers' default says something else.

With them a model can be built on the meta device, at its true size, without weights and without a network
(:func:`retrieval_heads.models.sizes.meta_model`). They were written down by hand: check each against the published
file the first time the hub is at hand (:func:`retrieval_heads.models.sizes.check_config`).
"""

from __future__ import annotations

from typing import Any


def _llama3_rope(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def _zamba2_layers(count: int, hybrid: set[int]) -> list[str]:
    return ["hybrid" if i in hybrid else "mamba" for i in range(count)]


# Llama-3.1-8B's shape, with other mixers
LLAMBA_8B = {
    "model_type": "llamba",
    "vocab_size": 128256,
    "pad_vocab_size_multiple": 8,
    "tie_embeddings": False,
    "d_model": 4096,
    "n_layer": 32,
    "norm_epsilon": 1e-5,
    "mlp_cfg": {"intermediate_size": 14336, "bias": False, "act_fn": "silu"},
    "ssm_cfg": {
        "d_state": 64,
        "n_v_heads": 32,
        "n_qk_heads": 32,
        "expand": 1,
        "chunk_size": 128,
        "activation": "identity",
        "bias": False,
    },
}

CONFIGS: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
    "llama-3.2-1b": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": _llama3_rope(32.0),
        "tie_word_embeddings": True,
    },
    "qwen2-1.5b": {
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "zamba2-1.2b": {
        "model_type": "zamba2",
        "hidden_size": 2048,
        "num_hidden_layers": 38,
        "layers_block_type": _zamba2_layers(38, {5, 11, 17, 23, 29, 35}),
        "mamba_d_state": 128,
        "n_mamba_heads": 64,
        "use_shared_attention_adapter": True,
        "use_mem_rope": True,
    },
    "recurrentgemma-2b": {
        "model_type": "recurrent_gemma",
        "intermediate_size": 15360,  # of the gate and the value together
        "num_key_value_heads": 1,
        "lru_width": 2560,
    },
    "llama-3.1-8b": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": _llama3_rope(8.0),
    },
    "falcon-mamba-7b": {
        "model_type": "falcon_mamba",
        "vocab_size": 65024,
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "expand": 16,  # as published, and not what it is built with: intermediate_size is
        "intermediate_size": 8192,
        "tie_word_embeddings": False,
    },
    "llamba-8b": LLAMBA_8B,
    "llamba-8b-unaligned": LLAMBA_8B,
    "zamba2-7b": {
        "model_type": "zamba2",
        "hidden_size": 3584,
        "num_hidden_layers": 81,
        "layers_block_type": _zamba2_layers(81, {6, 11, *range(17, 78, 6)}),
        "mamba_ngroups": 2,
        "n_mamba_heads": 112,
        "num_mem_blocks": 2,
        "use_mem_rope": True,
    },
    "recurrentgemma-9b": {
        "model_type": "recurrent_gemma",
        "hidden_size": 4096,
        "intermediate_size": 24576,
        "num_hidden_layers": 38,
        "num_attention_heads": 16,
        "num_key_value_heads": 1,
        "lru_width": 4096,
    },
    "jamba-mini-1.6": {"model_type": "jamba"},  # the class's defaults are its sizes
}
