"""Independent ways to the same numbers: no nnsight, no trees, no resuming."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import nn

from retrieval_heads.heads import Head
from retrieval_heads.models.families import mixers


def weights_without(model, heads: list[Head]) -> nn.Module:
    """A copy of the torch module whose output projections ignore ``heads``: their weight columns are zero."""
    module = copy.deepcopy(model._module)
    for mixer in mixers(model):
        projection = module.get_submodule(mixer.path)
        # Zamba2's shared block holds one weight for several layers: give this layer its own before it is changed.
        projection.weight = nn.Parameter(projection.weight.detach().clone(), requires_grad=False)
        for head in heads:
            if (head.layer, head.kind) == (mixer.layer, mixer.kind):
                projection.weight.data[:, mixer.columns(head)] = 0
    return module


@torch.no_grad()
def naive_scores(module: nn.Module, tokenizer, item) -> list[float]:
    """The released way: a full forward pass for each candidate, alone."""
    prompt = tokenizer(item.prompt).input_ids
    scores = []
    for candidate in item.candidates:
        tokens = tokenizer(item.prompt + candidate).input_ids
        assert tokens[: len(prompt)] == prompt, "this oracle needs candidates that do not merge with the prompt"
        logprobs = module(torch.tensor([tokens])).logits[0].float().log_softmax(-1)
        scores.append(sum(logprobs[i - 1, tokens[i]].item() for i in range(len(prompt), len(tokens))))
    return scores


def prefix_free(strings) -> bool:
    """Whether no string begins another."""
    return all(not b.startswith(a) for a, b in pairwise(sorted(strings)))
