"""Attribution against autograd on a plain model, and against what it estimates."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from retrieval_heads.heads import Head
from retrieval_heads.models.families import heads_of, mixers
from retrieval_heads.models.loading import load
from retrieval_heads.probe.attribution import agreement, attribute
from retrieval_heads.probe.sweep import sweep
from retrieval_heads.tasks.kv_retrieval import KVRetrieval

from ..oracles import naive_scores

TASK = KVRetrieval(pairs=3, dictionaries=2, template="continuation", values="words")


@pytest.fixture(scope="module")
def model(tiny_llama_folder):
    return load(tiny_llama_folder)


def scaled(model, scales):
    """A copy of the torch module in which the weight columns of a head are multiplied by its scale."""
    module = copy.deepcopy(model._module).double()
    for mixer in mixers(model):
        weight = module.get_submodule(mixer.path).weight
        for index in range(mixer.heads):
            head = Head(mixer.layer, index)
            weight.data[:, mixer.columns(head)] *= scales.get(head, 1.0)
    return module


def log_odds(module, model):
    total = 0.0
    for item in TASK.items():
        scores = np.array(naive_scores(module, model.tokenizer, item))
        total += scores[item.answer] - np.logaddexp.reduce(np.delete(scores, item.answer))
    return total / len(TASK.items())


@pytest.mark.parametrize("method", ["gradient", "midpoint"])
def test_an_estimate_is_the_slope_along_the_heads_scale(model, method):
    """The derivative with respect to a head's scale, by central differences on weights: at 1, or at half its layer."""
    table = attribute(model, TASK, method).set_index(["layer", "head"]).estimate
    assert len(table) == len(heads_of(model))
    step = 2e-3
    for head in [Head(0, 1), Head(1, 3), Head(2, 0)]:
        layer = {Head(head.layer, i): 0.5 if method == "midpoint" else 1.0 for i in range(4)}
        up, down = (log_odds(scaled(model, {**layer, head: layer[head] + s}), model) for s in (step, -step))
        assert table[head.layer, head.index] == pytest.approx((up - down) / (2 * step), rel=0.02, abs=2e-3)


def test_agreement_of_a_sweep_with_itself_is_perfect(model):
    exact = sweep(model, TASK)
    estimates = exact.table[["layer", "head", "kind"]].assign(estimate=exact.table["drop"])
    found = agreement(estimates, exact, top=4, must_have=2)
    assert found == {"rank correlation": pytest.approx(1, abs=0.05), "recall": 1.0, "kept": 2}
    reverse = agreement(estimates.assign(estimate=-estimates.estimate), exact, top=4, must_have=2)
    assert reverse["rank correlation"] < 0 and reverse["recall"] == 0


def test_parameters_stay_without_gradients(model):
    attribute(model, TASK, "gradient")
    assert all(p.grad is None and not p.requires_grad for p in model._module.parameters())
    assert torch.is_grad_enabled()


def test_an_unknown_method_is_refused(model):
    with pytest.raises(ValueError, match="method='guess' is not 'gradient' or 'midpoint'"):
        attribute(model, TASK, "guess")
