"""Attention changed between softmax and values, against attention functions of our own in plain transformers."""

from __future__ import annotations

import copy
from itertools import count

import numpy as np
import pytest
import scipy.stats
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from retrieval_heads.interventions.during import During
from retrieval_heads.interventions.exposure import Omit
from retrieval_heads.interventions.knockout import Knockout, knockout
from retrieval_heads.interventions.sparsify import Sparsify, sparsify
from retrieval_heads.models.families import FAMILIES, heads_of, mixers
from retrieval_heads.models.loading import load
from retrieval_heads.probe.engine import INTACT, score
from retrieval_heads.tasks.items import Item

from .surgery import generated, logits, naive

IDS = torch.tensor([[5, 77, 200, 31, 8, 99, 140], [9, 9, 12, 250, 1, 64, 33]])
# One token a character: the needle is "b:22", the haystack the three lines.
MARKS = (("haystack", 0, 14), ("needle", 4, 8))
ITEMS = [
    Item("", "a:1\nb:22\nc:333\nb:", ("1x", "22"), 1, marks=MARKS),
    Item("", "q:1\nb:44\nc:777\nb:", ("7", "44", "1"), 1, marks=MARKS),
]
NUMBERS = count()
WITH_ATTENTION = [kind for kind, family in FAMILIES.items() if any(row.kind == "attention" for row in family.rows)]


@pytest.fixture(scope="module", params=sorted(WITH_ATTENTION))
def model(request, make):
    # The floor is explained in this folder's conftest.
    return make(request.param, "eager", **({"time_step_min": 1e-12} if request.param == "zamba2" else {}))


def with_weights(model, change, before=lambda scores: scores):
    """A copy of the torch module whose attention does ``change`` to its weights, ``before`` to their logarithms."""

    def attend(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        key, value = (each.repeat_interleave(module.num_key_value_groups, 1) for each in (key, value))
        scores = query @ key.transpose(2, 3) * scaling
        keys = key.shape[2]
        later = torch.arange(keys) > torch.arange(keys - query.shape[2], keys)[:, None]
        weights = change(before(scores.masked_fill(later, -torch.inf)).softmax(-1).nan_to_num(0))
        return (weights @ value).transpose(1, 2).contiguous(), weights

    name = f"oracle {next(NUMBERS)}"
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, eager_mask)
    module = copy.deepcopy(model._module)
    module.set_attn_implementation(name)
    return module


def only_most_focused(k):
    def change(weights):
        rows, heads, tokens, _ = weights.shape
        kept = torch.zeros_like(weights)
        for row in range(rows):
            for token in range(tokens):
                rows_of_heads = weights[row, :, token].double().numpy()
                entropies = [scipy.stats.entropy(each) for each in rows_of_heads]
                for head in sorted(range(heads), key=entropies.__getitem__)[:k]:
                    kept[row, head, token] = weights[row, head, token]
        return kept

    return change


def test_all_heads_of_a_layer_are_the_model_itself(model):
    heads = max(mixer.heads for mixer in mixers(model) if mixer.kind == "attention")
    view = sparsify(model, heads)
    torch.testing.assert_close(logits(view, IDS), logits(model, IDS), atol=0, rtol=0)
    for found, intact in zip(generated(view, IDS), generated(model, IDS)):
        torch.testing.assert_close(found, intact, atol=0, rtol=0)


def test_no_heads_are_a_knockout_of_every_attention_head(model):
    attention = [head for head in heads_of(model) if head.kind == "attention"]
    view, without = sparsify(model, 0), knockout(model, attention)
    torch.testing.assert_close(logits(view, IDS), logits(without, IDS), atol=1e-6, rtol=0)
    for found, expected in zip(generated(view, IDS), generated(without, IDS)):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert not torch.allclose(logits(view, IDS), logits(model, IDS), atol=1e-2)
    few, plain = score(model, ITEMS, [Sparsify(0), Knockout(attention)])
    np.testing.assert_allclose(few.scores, plain.scores, atol=1e-5)


@pytest.mark.parametrize("k", [1, 3])
def test_the_heads_of_lowest_entropy_stay(model, k):
    oracle, view = with_weights(model, only_most_focused(k)), sparsify(model, k)
    torch.testing.assert_close(logits(view, IDS), logits(oracle, IDS), atol=1e-4, rtol=0)
    found, expected = generated(view, IDS, steps=3), generated(oracle, IDS, steps=3)
    torch.testing.assert_close(found[0], expected[0], atol=2e-4, rtol=0)


def marked(model, mark):
    """(keys,) which tokens of the prompts have that mark, the same in all; an answer of two more tokens has none."""
    _, start, end = next(each for each in MARKS if each[0] == mark)
    extra = len(model.tokenizer(ITEMS[0].prompt).input_ids) - len(ITEMS[0].prompt)
    keys = torch.zeros(len(ITEMS[0].prompt) + extra + 2, dtype=torch.bool)
    keys[start + extra : end + extra] = True
    if mark == "haystack":
        keys &= ~marked(model, "needle")
    return keys


@pytest.mark.parametrize("part", ["needle", "haystack"])
def test_an_omitted_part_is_not_attended_to(model, part):
    gone = marked(model, part)
    target = len(model.tokenizer(ITEMS[0].prompt).input_ids) - 1

    def zeroed(since, until):
        def change(weights):
            weights = weights.clone()
            weights[:, :, since:until, gone[: weights.shape[-1]]] = 0
            return weights

        return with_weights(model, change)

    hidden = with_weights(
        model,
        lambda weights: weights,
        lambda scores: scores.masked_fill(gone[: scores.shape[-1]], -torch.inf),
    )
    oracles = {
        Omit(part): zeroed(None, None),
        During(Omit(part), "from the target"): zeroed(target, None),
        During(Omit(part), "before the target"): zeroed(None, target),
        Omit(part, renormalise=True): hidden,
    }
    answers = score(model, ITEMS, [*oracles, INTACT])
    for oracle, found in zip(oracles.values(), answers):
        for item, scores in zip(ITEMS, found.scores):
            np.testing.assert_allclose(scores[: len(item.candidates)], naive(oracle, model, item), atol=2e-4)
    # Attention in the last layer alone (RecurrentGemma here) brings what earlier tokens read to no later one.
    for found in answers[:2]:
        assert not np.allclose(found.scores, answers[-1].scores, atol=1e-3, equal_nan=True)


def test_heads_by_their_attention_on_the_needle(model):
    def change(weights):
        mass = weights[..., marked(model, "needle")[: weights.shape[-1]]].sum(-1)
        best = mass.max(1, keepdim=True).values == mass
        first = best & (best.cumsum(1) == 1)
        return weights * first[..., None]

    oracle, (answers,) = with_weights(model, change), score(model, ITEMS, [Sparsify(1, by="needle")])
    for item, scores in zip(ITEMS, answers.scores):
        np.testing.assert_allclose(scores[: len(item.candidates)], naive(oracle, model, item), atol=2e-4)


def test_random_heads_depend_on_their_seed_and_on_nothing_around_an_item(model):
    by_seed = [Sparsify(1, by="random", seed=seed) for seed in (0, 1)]
    together = score(model, ITEMS, by_seed)
    alone = [score(model, [item], by_seed) for item in ITEMS]
    for number, answers in enumerate(together):
        for row, item in enumerate(ITEMS):
            one = alone[row][number].scores[0]
            np.testing.assert_allclose(answers.scores[row][: len(item.candidates)], one, atol=1e-4)
    assert not np.allclose(together[0].scores, together[1].scores, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("marks", [(("needle", 0, 99),), (("needle", 2, 2),), (("thread", 0, 1),)])
def test_marks_that_are_no_spans_are_refused(marks):
    with pytest.raises(ValueError, match="is no span of the prompt named one of"):
        Item("a:1\n", "a:", ("1", "2"), 0, marks=marks)


def test_what_cannot_be_sparsified_is_refused(make, tiny_llama_folder):
    with pytest.raises(ValueError, match="under eager attention only, not under 'sdpa'"):
        sparsify(load(tiny_llama_folder), 1)
    with pytest.raises(ValueError, match="the model has no 'attention' heads"):
        sparsify(make("mamba2", "eager"), 1)
    with pytest.raises(ValueError, match="k=-1 is a number of heads"):
        Sparsify(-1)
    with pytest.raises(ValueError, match="by='size' is not one of 'entropy', 'needle', 'random'"):
        Sparsify(1, by="size")
    with pytest.raises(ValueError, match="part='question' is not one of"):
        Omit("question")
    with pytest.raises(ValueError, match="a view is given tokens, which do not say where the needle is"):
        logits(sparsify(make("llama", "eager"), 1, by="needle"), IDS)


def test_they_describe_themselves():
    assert Sparsify(2).describe() == {"sparsify": {"k": 2, "by": "entropy"}}
    assert Sparsify(2, "random", 3).describe() == {"sparsify": {"k": 2, "by": "random", "seed": 3}}
    assert Omit(renormalise=True).describe() == {"omit": {"part": "needle", "renormalise": True}}
