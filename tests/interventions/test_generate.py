"""Interventions in a generation with a cache, against modules under surgery that compute every step anew."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from retrieval_heads.heads import HeadSet
from retrieval_heads.interventions.during import during
from retrieval_heads.interventions.edits import apply
from retrieval_heads.interventions.knockout import Knockout, knockout
from retrieval_heads.interventions.mask import mask_last_row
from retrieval_heads.interventions.prune import prune
from retrieval_heads.interventions.swap import swap
from retrieval_heads.models.families import heads_of, mixers, random_heads

from ..oracles import weights_without
from .surgery import check_generation, generated, logits, swapped, without_layers, without_mixers, zeroed

IDS = torch.tensor([[5, 77, 200, 31, 8, 99, 140], [9, 9, 12, 250, 1, 64, 33]])


def test_knockout(family_model):
    heads = random_heads(family_model, len(heads_of(family_model)) // 3, seed=1)
    check_generation(knockout(family_model, heads), weights_without(family_model, list(heads)), IDS)
    found, intact = generated(knockout(family_model, heads), IDS)[0], generated(family_model, IDS)[0]
    assert not torch.allclose(found, intact, atol=1e-2)


def test_prune(family_model):
    """The first layer too, by whose cache some models count positions."""
    check_generation(prune(family_model, [0], last=1), _pruned(family_model), IDS, use_cache=False)
    check_generation(prune(family_model, [0], mlp=False), without_mixers(family_model, [0]), IDS)


def _pruned(model):
    return without_layers(model, [0, model.config.num_hidden_layers - 1])


def test_mask_last_row(family_model):
    """The last row of the prompt, and every row after it."""
    view = mask_last_row(family_model, {mixer.kind for mixer in mixers(family_model)})
    check_generation(view, zeroed(family_model, heads_of(family_model), slice(6, None)), IDS, use_cache=False)


def test_swap(family_model, teacher):
    check_generation(swap(family_model, teacher, 2), swapped(family_model, teacher, 2), IDS, use_cache=False)


@pytest.mark.parametrize("when", ["prefill", "generation"])
def test_during(family_model, when):
    heads = random_heads(family_model, len(heads_of(family_model)) // 3, seed=1)
    found, tokens = generated(apply(family_model, during(Knockout(heads), when)), IDS)
    intact, without = family_model._module, weights_without(family_model, list(heads))
    first, later = (without, intact) if when == "prefill" else (intact, without)
    cache, positions = DynamicCache(config=family_model.config), torch.arange(IDS.shape[1])[None]
    module, ids, expected = first, IDS, []
    with torch.no_grad():
        for _ in range(found.shape[1]):  # Bamba counts positions from 0 in every call, unless it is told them
            expected.append(module(ids, cache=cache, position_ids=positions, use_cache=True).logits[:, -1])
            for before, after in zip(module.modules(), later.modules()):
                for name in {"recurrent_states", "conv1d_state"} & vars(before).keys():  # RecurrentGemma's own cache
                    setattr(after, name, getattr(before, name))
            module, ids, positions = later, expected[-1].argmax(-1, keepdim=True), positions[:, -1:] + 1
    torch.testing.assert_close(found, torch.stack(expected, 1), atol=2e-4, rtol=0)
    assert torch.equal(tokens, torch.stack(expected, 1).argmax(-1))


def test_during_both_is_the_intervention_itself(make):
    model, out = make("llama"), Knockout(HeadSet(["L0H1", "L1H2"]))
    always, plain = (generated(apply(model, each), IDS)[0] for each in (during(out, "both"), out))
    torch.testing.assert_close(always, plain, atol=0, rtol=0)


def test_during_is_refused_for_any_other_time():
    with pytest.raises(ValueError, match="when='decode' is not one of 'prefill', 'generation', 'both', "):
        during(Knockout(HeadSet()), "decode")


def test_during_describes_itself():
    described = during(Knockout(HeadSet()), "prefill").describe()
    assert described == {"during": "prefill", "intervention": {"knockout": []}}


def test_zamba2_does_not_yet_keep_its_step_size_above_the_floor_in_single_steps(make):
    """When this fails, transformers has mended it: take the floor out of this folder's conftest."""
    model = make("zamba2")
    found, tokens = generated(model, IDS)
    expected = logits(model._module, torch.cat([IDS, tokens[:, :-1]], 1))[:, IDS.shape[1] - 1 :]
    assert (found[:, 0] - expected[:, 0]).abs().max() < 1e-4 < (found[:, 1:] - expected[:, 1:]).abs().max()
