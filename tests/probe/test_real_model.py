"""What only a trained model can show: right answers, wrong ones, and heads that matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from retrieval_heads.heads import HeadSet
from retrieval_heads.interventions.knockout import Knockout, knockout
from retrieval_heads.mixing.roles import roles
from retrieval_heads.models.loading import load
from retrieval_heads.probe.engine import INTACT, score
from retrieval_heads.probe.sweep import sweep
from retrieval_heads.tasks.kv_retrieval import KVRetrieval

from ..oracles import naive_scores, weights_without

pytestmark = pytest.mark.real_model
TOP_THREE = HeadSet(["L16H0", "L17H8", "L18H6"])


@pytest.fixture(scope="module")
def model():
    return load("smollm2-135m")


def test_generated_is_what_generate_writes(model):
    items = KVRetrieval(pairs=6, dictionaries=2, template="continuation", seed=3).items()
    for heads, answers in zip((HeadSet(), TOP_THREE), score(model, items, [INTACT, Knockout(TOP_THREE)])):
        view = knockout(model, heads)
        assert 0 < answers.generated.sum() < len(items)  # both outcomes are there to be told apart
        for item, expected in zip(items, answers.generated):
            ids = model.tokenizer(item.prompt, return_tensors="pt").input_ids
            mask = torch.ones_like(ids)
            out = view.generate(input_ids=ids, attention_mask=mask, max_new_tokens=2, do_sample=False)
            text = model.tokenizer.decode(out[0, ids.shape[1] :])
            assert text.startswith(item.candidates[item.answer]) == expected


def test_a_knockout_equals_weight_surgery_on_numbers_of_several_tokens(model):
    item = KVRetrieval(pairs=5, dictionaries=1, queries=1, seed=1).items()[0]
    surgery = naive_scores(weights_without(model, list(TOP_THREE)), model.tokenizer, item)
    (answers,) = score(model, [item], [Knockout(TOP_THREE)])
    np.testing.assert_allclose(answers.scores[0], surgery, atol=1e-3)


def test_the_gather_and_the_aggregate_head_lead_the_ranking(model):
    """Among the costliest other heads of a sweep of all 270 on 600 questions, and some that cost nothing."""
    rivals = ["L0H8", "L17H8", "L0H7", "L16H2", "L0H3", "L17H0", "L5H2", "L10H4", "L20H0", "L29H3"]
    task = KVRetrieval(dictionaries=2, template="continuation", values="words", single_token=True)
    scores = sweep(model, task, ["L16H0", "L18H6", *rivals])
    assert scores.top(2) == HeadSet(["L16H0", "L18H6"])
    assert 0.6 < scores.header["intact"]["value"] < 0.95
    found = roles(model, task.items(model.tokenizer)[:4], ["L16H0", "L18H6"]).set_index("head")["role"]
    assert found.to_dict() == {"L16H0": "Gather", "L18H6": "Aggregate"}
