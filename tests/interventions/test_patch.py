"""A patched head gives what it gave elsewhere, and all of them together are the other run."""

from __future__ import annotations

import copy

import pytest
import torch

from retrieval_heads.heads import HeadSet
from retrieval_heads.interventions.edits import apply
from retrieval_heads.interventions.patch import Patch, head_outputs
from retrieval_heads.models.families import heads_of, mixers

from .surgery import logits, replaced

CLEAN, OTHER = "ab:cd\nef:gh\nab:", "ab:xy\nef:cd\nab:"  # one token a byte


def ids(model, prompt):
    return model.tokenizer(prompt, return_tensors="pt").input_ids


def test_all_heads_patched_are_the_other_run_at_equal_tokens(family_model):
    everyone = HeadSet(heads_of(family_model))
    view = apply(family_model, Patch(everyone, head_outputs(family_model, CLEAN)))
    found, clean, other = (
        logits(model, ids(family_model, text))
        for model, text in ((view, OTHER), (family_model, CLEAN), (family_model, OTHER))
    )
    same = torch.tensor([a == b for a, b in zip(CLEAN, OTHER)])  # what mixers write is all that tokens tell each other
    torch.testing.assert_close(found[:, same], clean[:, same], atol=1e-5, rtol=0)
    assert not torch.allclose(found[:, -1], other[:, -1], atol=1e-3)
    itself = apply(family_model, Patch(everyone, head_outputs(family_model, OTHER)))
    torch.testing.assert_close(logits(itself, ids(family_model, OTHER)), other, atol=1e-5, rtol=0)


def test_one_patched_head_is_its_slice_of_the_projection_written_over(family_model):
    mixer = mixers(family_model)[1]
    head = next(head for head in heads_of(family_model) if (head.layer, head.kind) == (mixer.layer, mixer.kind))
    source = head_outputs(family_model, CLEAN)
    columns = mixer.columns(head)

    def write_over(inner, values):
        values = values.clone()
        values[..., columns] = source.at[mixer.path][:, columns]
        return inner(values)

    oracle = copy.deepcopy(family_model._module)
    replaced(oracle, mixer.path, write_over)
    found = logits(apply(family_model, Patch(HeadSet([head]), source)), ids(family_model, OTHER))
    torch.testing.assert_close(found, logits(oracle, ids(family_model, OTHER)), atol=1e-5, rtol=0)


def test_prompts_of_different_lengths_and_empty_ones_are_refused(make):
    model = make("llama")
    view = apply(model, Patch(HeadSet(["L0H0"]), head_outputs(model, CLEAN + "x")))
    with pytest.raises(Exception, match="16 tokens, the patched prompt"):
        logits(view, ids(model, OTHER))
    with pytest.raises(ValueError, match="empty prompt"):
        head_outputs(model, "")
    with pytest.raises(ValueError, match="L9H0"):
        Patch(HeadSet(["L9H0"]), head_outputs(model, CLEAN)).edits(model)
