"""A knockout by nnsight equals zeroed weight columns: in a pass, in a generation, alone and composed."""

from __future__ import annotations

import pytest
import torch

from retrieval_heads.heads import Head, HeadSet
from retrieval_heads.interventions.edits import apply
from retrieval_heads.interventions.knockout import Knockout, knockout
from retrieval_heads.models.families import heads_of, mixers, random_heads, resolve
from retrieval_heads.models.loading import load

from ..oracles import weights_without
from .surgery import replaced

IDS = torch.tensor([[5, 77, 200, 31, 8, 99, 140, 3], [9, 9, 12, 250, 1, 64, 33, 180]])


@pytest.fixture(scope="module")
def model(tiny_llama_folder):
    return load(tiny_llama_folder)


@torch.no_grad()
def logits(model):
    return model.trace(input_ids=IDS, trace=False).logits


@pytest.mark.parametrize("heads", [["L0H0"], ["L2H3"], ["L0H1", "L0H2", "L1H3"], "all"])
def test_a_knockout_equals_zeroed_columns(model, heads):
    heads = heads_of(model) if heads == "all" else HeadSet(heads)
    with torch.no_grad():
        expected = weights_without(model, list(heads))(IDS).logits
    torch.testing.assert_close(logits(knockout(model, heads)), expected, atol=1e-5, rtol=0)
    assert not torch.allclose(logits(model), expected, atol=1e-3)


def test_views_compose_and_leave_the_model_alone(model):
    before = logits(model)
    composed = knockout(knockout(model, ["L0H1"]), ["L1H0", "L0H2"])
    torch.testing.assert_close(logits(composed), logits(knockout(model, ["L0H1", "L0H2", "L1H0"])), atol=0, rtol=0)
    torch.testing.assert_close(logits(model), before, atol=0, rtol=0)


def test_no_heads_is_the_intact_model(model):
    assert apply(model, Knockout(HeadSet())) is model


def test_generation_under_a_knockout_is_that_of_zeroed_columns(model):
    heads = HeadSet(["L0H0", "L1H2", "L2H1"])
    options = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "max_new_tokens": 12, "do_sample": False}
    expected = weights_without(model, list(heads)).generate(**options)
    assert torch.equal(knockout(model, heads).generate(**options), expected)
    assert not torch.equal(model.generate(**options), expected)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("L3H0", "layers with heads are 0 to 2"),
        ("L1H4", "layer 1 has attention heads 0 to 3"),
        ("L1H0:mamba", "layer 1 has attention heads"),
    ],
)
def test_a_head_that_does_not_exist_is_refused(model, head, message):
    with pytest.raises(ValueError, match=f"{head} does not exist: .*{message}"):
        knockout(model, [head])


def test_random_heads_are_a_fair_repeatable_control(model):
    drawn = random_heads(model, 5, besides=["L0H0", "L1H1"], seed=3)
    assert len(drawn) == 5 and not drawn & HeadSet(["L0H0", "L1H1"])
    assert drawn == random_heads(model, 5, besides=["L0H0", "L1H1"], seed=3)
    assert random_heads(model, 10, besides=["L0H0", "L1H1"]) == heads_of(model) - HeadSet(["L0H0", "L1H1"])
    with pytest.raises(ValueError, match="count=11 is not between 0 and the 10 heads"):
        random_heads(model, 11, besides=["L0H0", "L1H1"])


def test_heads_are_counted_layer_by_layer(model):
    assert [str(head) for head in heads_of(model)][:5] == ["L0H0", "L0H1", "L0H2", "L0H3", "L1H0"]
    assert resolve(model, ["L2H3", "L0H0"]) == HeadSet(["L0H0", "L2H3"])


def test_an_architecture_that_is_not_in_the_table_is_refused_with_the_row_to_add(model, monkeypatch):
    monkeypatch.setattr(model.config, "model_type", "abacus", raising=False)
    with pytest.raises(ValueError, match=r"'abacus' is not in the table.*llama.*FAMILIES\[\"abacus\"\] = Family"):
        heads_of(model)


def test_zamba2s_shared_block_loses_heads_at_one_call_and_keeps_them_at_the_next(make):
    """The same weights at layers 2 and 4: what a knocked-out head is at the first call, the second still has."""
    model = make("zamba2")
    first, second = (f"model.layers.{i}.shared_transformer.self_attn.o_proj" for i in (2, 4))
    assert model._module.get_submodule(first).weight is model._module.get_submodule(second).weight
    heads, read = [Head(2, 1), Head(2, 3)], {}
    module = weights_without(model, heads)  # gives the first call a weight of its own
    replaced(module, second, lambda inner, values: read.setdefault("later", values) @ inner.weight.T)
    expected = module(IDS, use_cache=False).logits
    view = knockout(model, heads)
    with torch.no_grad(), view.trace(input_ids=IDS, use_cache=False):
        gone = view.get(first).input.save()
        later = view.get(second).input.save()
        found = view.output.logits.save()
    torch.testing.assert_close(later, read["later"], atol=1e-5, rtol=0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    mixer = next(mixer for mixer in mixers(model) if mixer.path == first)
    for columns in map(mixer.columns, heads):
        assert (gone[..., columns] == 0).all() and (later[..., columns] != 0).all()
