"""A tiny random model of every family in the table, all with one byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

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
OPTIONS: dict[str, dict] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
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
