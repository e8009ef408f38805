"""The engine against the naive loop: same numbers, whatever is shared, resumed, batched or halved."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from retrieval_heads.heads import Head, HeadSet
from retrieval_heads.interventions.edits import Edit
from retrieval_heads.interventions.knockout import Knockout, knockout
from retrieval_heads.models.families import heads_of
from retrieval_heads.models.loading import load
from retrieval_heads.probe import batching, engine
from retrieval_heads.probe.engine import INTACT, score
from retrieval_heads.tasks.items import Item
from retrieval_heads.tasks.kv_retrieval import KVRetrieval

from ..oracles import naive_scores, weights_without


@pytest.fixture(scope="module")
def model(tiny_llama_folder):
    return load(tiny_llama_folder)


@pytest.fixture(scope="module")
def items():
    return KVRetrieval(pairs=4, dictionaries=2, template="continuation").items()


def naive(model, items, heads=()):
    module = weights_without(model, list(heads))
    return np.array([naive_scores(module, model.tokenizer, item) for item in items])


def test_every_head_equals_the_naive_loop(model, items):
    heads = list(heads_of(model))
    fast = score(model, items, [Knockout(HeadSet([head])) for head in heads])
    for head, answers in zip(heads, fast):
        np.testing.assert_allclose(answers.scores, naive(model, items, [head]), atol=1e-4)


def test_intact_and_joint_sets_equal_the_naive_loop(model, items):
    sets = [HeadSet(), HeadSet(["L0H1", "L2H3"]), HeadSet(["L1H0", "L1H2", "L2H0"]), HeadSet(heads_of(model))]
    for heads, answers in zip(sets, score(model, items, [Knockout(heads) for heads in sets])):
        np.testing.assert_allclose(answers.scores, naive(model, items, heads), atol=1e-4)


def test_prompts_of_different_lengths_score_the_same_together_and_alone(model):
    items = [
        Item("", "The sky is", (" blue", " a very long answer", " red"), 0),
        Item("a:1\n", "a:", ("1", "22"), 0),
        Item("", "Is it? ", ("yes", "no"), 1),
        *KVRetrieval(pairs=3, dictionaries=1, spaced=True).items(),
    ]
    (together,) = score(model, items)
    for i, item in enumerate(items):
        (alone,) = score(model, [item])
        width = len(item.candidates)
        np.testing.assert_allclose(together.scores[i, :width], alone.scores[0], atol=1e-4)
        np.testing.assert_allclose(alone.scores[0], naive_scores(model._module, model.tokenizer, item), atol=1e-4)
        assert np.isnan(together.scores[i, width:]).all()


@pytest.mark.parametrize("copies", [1, 3, 100])
def test_the_number_of_copies_changes_nothing(model, items, copies):
    conditions = [INTACT, *(Knockout(HeadSet([head])) for head in heads_of(model))]
    expected = score(model, items, conditions, copies=2)
    for a, b in zip(score(model, items, conditions, copies=copies), expected):
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)


def test_an_edited_view_is_scored_with_its_edits(model, items):
    view = knockout(model, ["L0H1"])
    intact, both = score(view, items, [INTACT, Knockout(HeadSet(["L2H3"]))])
    np.testing.assert_allclose(intact.scores, naive(model, items, [Head(0, 1)]), atol=1e-4)
    np.testing.assert_allclose(both.scores, naive(model, items, [Head(0, 1), Head(2, 3)]), atol=1e-4)


def test_running_out_of_memory_halves_the_pass_and_loses_nothing(model, items, monkeypatch):
    conditions = [Knockout(HeadSet([head])) for head in heads_of(model)]
    expected = score(model, items, conditions, copies=4)
    sizes, real = [], engine.edited_pass

    def crowded(model, layout, edits, trunk):
        sizes.append(len(edits))
        if len(edits) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return real(model, layout, edits, trunk)

    monkeypatch.setattr(engine, "edited_pass", crowded)
    halved = score(model, items, conditions, copies=4)
    assert max(sizes) == 4 and sizes.count(1) == 2 * len(conditions)  # each once for each dictionary, never twice
    for a, b in zip(halved, expected):
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)


def test_one_copy_too_large_for_the_memory_says_so():
    def run(work):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    with pytest.raises(MemoryError, match="shorter prompts"):
        list(batching.halving(run, [1, 2]))


def test_other_errors_are_not_taken_for_a_full_memory():
    def run(work):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        list(batching.halving(run, [1, 2]))


def test_a_view_leaves_the_model_as_it_was(model, items):
    before = score(model, items)[0].scores
    score(knockout(model, ["L1H1"]), items)
    np.testing.assert_array_equal(score(model, items)[0].scores, before)


@pytest.mark.parametrize(("head", "message"), [("L9H0", "layers with heads are 0 to 2"), ("L1H7", "heads 0 to 3")])
def test_a_head_that_does_not_exist_is_refused_by_name(model, items, head, message):
    with pytest.raises(ValueError, match=f"{head} does not exist.*{message}"):
        score(model, items, [Knockout(HeadSet([head]))])


def test_one_head_instead_of_a_list_is_refused(model):
    with pytest.raises(TypeError, match=r"a list of heads is needed, not one: \['L0H1'\]"):
        knockout(model, "L0H1")


def test_an_edit_that_has_no_place_is_refused_not_dropped(model, items):
    class Misplaced:
        def edits(self, model):
            return [Edit(1, "model.layers.1.mlp.down_proj", lambda values: values * 0)]

    with pytest.raises(ValueError, match=r"mlp\.down_proj cannot be placed"):
        score(model, items, [Misplaced()])


def test_a_prompt_that_the_model_cannot_read_is_refused(model):
    with pytest.raises(ValueError, match="tokens, the model reads 2048; use shorter prompts"):
        score(model, [Item("", "x" * 2048, ("a", "b"), 0)])


def test_no_items_is_refused(model):
    with pytest.raises(ValueError, match="no items"):
        score(model, [])
