"""A tiny random model of every family in the table, all with one byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

import retrieval_heads.models.llamba  # noqa: F401 - its import makes the architecture known to transformers

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "initializer_range": 0.2,
    "bos_token_id": None,
}
# One entry a row of `retrieval_heads.models.families.FAMILIES`; a test says so when one is missing.
MAMBA = {"intermediate_size": 96, "state_size": 4, "time_step_rank": 4}
OPTIONS: dict[str, dict] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    "mamba2": {"num_heads": 8, "head_dim": 12, "n_groups": 2, "state_size": 8, "chunk_size": 8},
    "llamba": {"d_state": 8, "n_v_heads": 4, "n_qk_heads": 2, "chunk_size": 8},
    "zamba2": {
        "num_hidden_layers": 6,
        "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "hybrid", "mamba"],
        "num_key_value_heads": 4,
        "mamba_ngroups": 2,
        "mamba_d_state": 8,
        "chunk_size": 8,
        "use_mem_rope": True,
    },
    "recurrent_gemma": {"attention_window_size": 2048, "w_init_variance_scale": 1.0},
    "jamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "num_experts": 4,
        "mamba_d_state": 4,
        "mamba_dt_rank": 4,
    },
    "bamba": {
        "num_hidden_layers": 4,
        "attn_layer_indices": [2],
        "mamba_n_heads": 8,
        "mamba_d_head": 12,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
    },
}


def save_tiny(kind: str, folder: Path, tokenizer, **more) -> Path:
    """Save a random model of that family with ``tokenizer`` in ``folder``, as a checkpoint from the hub looks."""
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.eos_token_id}
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), **{**SIZES, **ends, **OPTIONS[kind], **more}
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
