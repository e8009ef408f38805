"""The engine under every intervention, against a full pass a candidate through modules under surgery."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval_heads.heads import HeadSet
from retrieval_heads.interventions.during import During
from retrieval_heads.interventions.edits import apply
from retrieval_heads.interventions.keep_only import KeepOnly
from retrieval_heads.interventions.knockout import Knockout, knockout
from retrieval_heads.interventions.mask import MaskLastRow, mask_last_row
from retrieval_heads.interventions.prune import Prune, prune
from retrieval_heads.interventions.swap import Swap
from retrieval_heads.models.families import heads_of, mixers, packs, random_heads
from retrieval_heads.probe.engine import INTACT, score
from retrieval_heads.tasks.items import Item

from ..oracles import weights_without
from .surgery import naive, swapped, without_layers, without_mixers, zeroed

ITEMS = [
    Item("a:1\nb:22\n", "b:", ("1x", "22"), 1),
    Item("", "ab", ("cd", "x"), 0),  # with its answer it is the beginning of the next prompt
    Item("", "abcde", ("f", "gh"), 1),
]


def test_the_engine_equals_the_naive_loop(family_model, teacher):
    model = family_model
    some, kinds = random_heads(model, len(heads_of(model)) // 3, seed=1), {mixer.kind for mixer in mixers(model)}
    others = [h for h in heads_of(model) - some if h.layer in (1, 2)]
    fixed = {
        Prune(last=1): without_layers(model, [model.config.num_hidden_layers - 1]),
        Prune((0,), mlp=False): without_mixers(model, [0]),
        KeepOnly(some, (1, 2)): weights_without(model, others),
        Swap(teacher, 2): swapped(model, teacher, 2),
    }
    moving = {
        MaskLastRow(tuple(kinds)): (heads_of(model), lambda end: slice(end - 1, None)),
        During(Knockout(some), "prefill"): (some, lambda end: slice(0, end)),
        During(Knockout(some), "generation"): (some, lambda end: slice(end, None)),
    }
    conditions = [*fixed, *moving]
    fast = score(model, ITEMS, [*conditions, INTACT])
    for condition, answers in zip(conditions, fast):
        for item, found in zip(ITEMS, answers.scores):
            end = len(model.tokenizer(item.prompt).input_ids)
            if condition in fixed:
                runs = [fixed[condition], *([apply(model, condition)] if item == ITEMS[0] else [])]
            else:  # a view cannot know where in a trace the prompt ends
                heads, tokens = moving[condition]
                runs = [zeroed(model, heads, tokens(end))]
            for run in runs:
                np.testing.assert_allclose(found[: len(item.candidates)], naive(run, model, item), atol=2e-4)
        assert not np.allclose(answers.scores, fast[-1].scores, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("kind", ["llama", "mamba2", "zamba2"])
def test_a_view_is_scored_as_its_interventions_are(make, kind):
    model = make(kind)
    kinds = tuple({mixer.kind for mixer in mixers(model)})
    view = mask_last_row(prune(model, last=1), kinds)

    class Both:
        def edits(self, model):
            return [*Prune(last=1).edits(model), *MaskLastRow(kinds).edits(model), *Knockout(some).edits(model)]

    some = HeadSet([next(iter(heads_of(model)))])
    expected = score(model, ITEMS, [Both()])[0].scores
    for found in (score(view, ITEMS, [Knockout(some)]), score(knockout(view, some), ITEMS)):
        np.testing.assert_allclose(found[0].scores, expected, atol=1e-5)


@pytest.mark.parametrize("copies", [1, 2, 100])
def test_however_many_share_a_pass_and_wherever_it_begins(make, teacher, copies):
    model = make("llama")
    conditions = [
        Prune((2,)),
        Swap(teacher, 2),
        MaskLastRow(),
        Knockout(HeadSet(["L2H1"])),
        Swap(teacher, 2, HeadSet()),
    ]
    conditions += [During(each, "generation") for each in conditions]
    expected = [score(model, ITEMS, [condition])[0].scores for condition in conditions]
    for found, alone in zip(score(model, ITEMS, conditions, copies=copies), expected):
        np.testing.assert_allclose(found.scores, alone, atol=1e-5)


def test_edits_of_ones_own_upon_an_applied_view_are_refused(make):
    applied = mask_last_row(make("llama"))
    with applied.edit() as (_, own):
        own.model.layers[0].output = own.model.layers[0].output * 2
    with pytest.raises(ValueError, match="edit first, then apply"):
        score(own, ITEMS)


def test_ones_own_edits_below_an_applied_view_hold(make):
    model = make("llama")
    with model.edit() as (_, own):
        own.model.layers[0].output = own.model.layers[0].output * 0
    view = knockout(own, ["L1H0"])
    expected = [naive(view, model, item) for item in ITEMS]
    np.testing.assert_allclose(score(view, ITEMS)[0].scores, expected, atol=1e-4)


def test_a_teacher_that_cannot_read_branches_is_refused_not_misread(make):
    student, teacher = make("llama"), make("mamba2")
    assert packs(student, 10) and not packs(teacher, 10)
    with pytest.raises(ValueError, match="many branches in one pass, under a mask that this teacher cannot obey"):
        score(student, ITEMS, [Swap(teacher, 1)])
