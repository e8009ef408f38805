"""Pruned layers are layers that are not there."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from retrieval_heads.interventions.edits import apply
from retrieval_heads.interventions.prune import Prune, prune
from retrieval_heads.models.families import family

from .surgery import logits, without_layers, without_mixers

IDS = torch.tensor([[5, 77, 200, 31, 8, 99, 140, 3], [9, 9, 12, 250, 1, 64, 33, 180]])


def smaller(model, gone):
    """A model of ``gone`` layers less, built from its own config, with the weights of the first ones."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers -= gone
    for name in {"layer_types", "layers_block_type"} & vars(config).keys():  # elsewhere derived from other options
        setattr(config, name, getattr(config, name)[: config.num_hidden_layers])
    module = AutoModelForCausalLM.from_config(config).eval()
    report = module.load_state_dict(model._module.state_dict(), strict=False)
    assert not report.missing_keys
    assert all(name.startswith(family(model).layers) for name in report.unexpected_keys)
    assert len(module.get_submodule(family(model).layers)) == config.num_hidden_layers
    return module


def test_without_the_last_layers_equals_a_smaller_model(family_model):
    found, expected = (logits(each, IDS) for each in (prune(family_model, last=2), smaller(family_model, 2)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert not torch.allclose(found, logits(family_model, IDS), atol=1e-2)


def test_without_single_layers_equals_a_list_of_layers_without_them(family_model):
    for layers in ([0], [2], [0, 2]):  # in Zamba2 the third layer holds the shared block, in others attention
        found, expected = (logits(e, IDS) for e in (prune(family_model, layers), without_layers(family_model, layers)))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_without_its_mixer_a_layer_is_one_whose_projection_is_zero(family_model):
    found, expected = (
        logits(e, IDS) for e in (prune(family_model, [0, 2], mlp=False), without_mixers(family_model, [0, 2]))
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    whole = logits(prune(family_model, [0, 2]), IDS)
    only_mixers = family_model.config.model_type in ("mamba", "falcon_mamba", "mamba2", "zamba2")
    assert torch.allclose(found, whole, atol=1e-5) == only_mixers


def test_the_bias_of_a_mixer_goes_with_it(make):
    model = make("recurrent_gemma", hidden_size=24, head_dim=6)  # a model of its own, for its bias is changed
    with torch.no_grad():
        for layer in (0, 2):
            block = model._module.model.layers[layer].temporal_block
            (block.linear_out if layer == 0 else block.o_proj).bias.fill_(3.0)
    found, expected = (logits(each, IDS) for each in (prune(model, [0, 2], mlp=False), without_mixers(model, [0, 2])))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_no_layers_at_all_leave_embedding_norm_and_head(make):
    model = make("llama")
    expected = model._module.lm_head(model._module.model.norm(model._module.model.embed_tokens(IDS)))
    torch.testing.assert_close(logits(prune(model, last=3), IDS), expected, atol=1e-5, rtol=0)
    assert prune(model) is model


def test_views_compose(make):
    model = make("llama")
    once, twice = prune(model, [0], last=1), prune(prune(model, last=1), [0])
    torch.testing.assert_close(logits(once, IDS), logits(twice, IDS), atol=0, rtol=0)


def test_it_describes_itself():
    described = {"prune": {"layers": [3], "last": 8, "mlp": False}}
    assert json.loads(json.dumps(Prune((3,), 8, mlp=False).describe())) == described


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Prune((3,)), "layer 3 does not exist: the model's layers are 0 to 2"),
        (Prune((-1,)), "layer -1 does not exist"),
        (Prune(last=4), "last=4 is not between 0 and the model's 3 layers"),
        (Prune(last=-1), "last=-1 is not between"),
    ],
)
def test_layers_that_do_not_exist_are_refused(make, wrong, message):
    with pytest.raises(ValueError, match=message):
        apply(make("llama"), wrong)
