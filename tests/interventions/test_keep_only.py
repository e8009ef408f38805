"""Keeping some heads is knocking out all the others."""

from __future__ import annotations

import json

import pytest
import torch

from retrieval_heads.heads import HeadSet
from retrieval_heads.interventions.keep_only import KeepOnly, keep_only
from retrieval_heads.models.families import heads_of, random_heads

from ..oracles import weights_without
from .surgery import logits

IDS = torch.tensor([[5, 77, 200, 31, 8, 99, 140, 3]])


def test_it_equals_zeroed_columns_of_all_the_others(family_model):
    heads = random_heads(family_model, 5, seed=2)
    for layers in (None, [1, 2]):
        gone = [h for h in heads_of(family_model) - heads if layers is None or h.layer in layers]
        expected = logits(weights_without(family_model, gone), IDS)
        torch.testing.assert_close(logits(keep_only(family_model, heads, layers), IDS), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kinds", [["attention"], ["mamba2"], None])
def test_kinds_say_of_which_heads_the_others_go(make, kinds):
    model = make("zamba2")
    heads = HeadSet(["L2H1", "L2H3", "L2H0", "L2H0:mamba2"])
    gone = KeepOnly(heads, (1, 2), tuple(kinds) if kinds else None).knockout(model).heads
    mamba2 = {h for h in heads_of(model) if h.layer in (1, 2) and h.kind == "mamba2"} - set(heads)
    attention = {h for h in heads_of(model) if h.layer == 2 and h.kind == "attention"} - set(heads)
    assert set(gone) == (attention if kinds == ["attention"] else mamba2 if kinds == ["mamba2"] else attention | mamba2)
    expected = logits(weights_without(model, list(gone)), IDS)
    torch.testing.assert_close(logits(keep_only(model, heads, [1, 2], kinds), IDS), expected, atol=1e-5, rtol=0)


def test_all_heads_kept_is_the_intact_model(make):
    model = make("llama")
    assert keep_only(model, heads_of(model)) is model


def test_it_describes_itself():
    described = {"keep_only": {"heads": ["L1H2"], "layers": [1, 2], "kinds": None}}
    assert json.loads(json.dumps(KeepOnly(HeadSet(["L1H2"]), (1, 2)).describe())) == described


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["L1H9"],), "L1H9 does not exist"),
        ((["L1H0"], [7]), "layer 7 does not exist: the model's layers are 0 to 2"),
        ((["L1H0"], None, ["mamba"]), "the model has no 'mamba' heads; its heads are attention"),
    ],
)
def test_what_does_not_exist_is_refused(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        keep_only(make("llama"), *arguments)
