"""Every family of the table: heads where the table says, knockouts exact, the engine equal to the naive loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from retrieval_heads.heads import HeadSet
from retrieval_heads.interventions.knockout import Knockout, knockout
from retrieval_heads.models.families import FAMILIES, heads_of, mixers, packs, random_heads
from retrieval_heads.models.loading import load
from retrieval_heads.probe.engine import score
from retrieval_heads.tasks.kv_retrieval import KVRetrieval

from .families import OPTIONS, save_tiny
from .oracles import naive_scores, weights_without

TASK = KVRetrieval(pairs=3, dictionaries=1, template="continuation")


@pytest.fixture(scope="module")
def tokenizer(tiny_llama_folder):
    return AutoTokenizer.from_pretrained(tiny_llama_folder)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request, tmp_path_factory, tokenizer):
    return load(save_tiny(request.param, tmp_path_factory.mktemp(request.param), tokenizer))


def test_every_family_of_the_table_is_tested():
    assert set(OPTIONS) == set(FAMILIES)


def test_the_table_fits_the_model(model):
    """Each output projection of the torch module is found once, in the order of the layers."""
    names = [n for n, _ in model._module.named_modules(remove_duplicate=False)]
    assert {m.path for m in mixers(model)} == {n for n in names if n.endswith(("o_proj", "out_proj", "linear_out"))}
    assert [m.layer for m in mixers(model)] == sorted(m.layer for m in mixers(model))
    assert {m.heads for m in mixers(model) if m.kind == "attention"} <= {4}


def test_a_knockout_equals_zeroed_columns(model):
    ids = torch.tensor([[5, 77, 200, 31, 8, 99]])
    heads = random_heads(model, 9, seed=1)
    with torch.no_grad():
        expected = weights_without(model, list(heads))(ids).logits
        found = knockout(model, heads).trace(input_ids=ids, trace=False).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_every_head_in_the_engine_equals_the_naive_loop(model):
    check_against_naive_loop(model)


@pytest.mark.parametrize("window", [16, 4096])
def test_a_sliding_window_is_never_replaced_by_a_mask(tmp_path, tokenizer, window):
    model = load(save_tiny("mistral", tmp_path, tokenizer, sliding_window=window))
    assert packs(model, 60) == (window == 4096)
    check_against_naive_loop(model)


def test_a_model_spread_by_accelerate_scores_the_same(tmp_path, tokenizer):
    folder = save_tiny("llama", tmp_path, tokenizer)
    whole, spread = load(folder), load(folder, device_map={"": "cpu"})
    for model in (whole, spread):
        assert model.device.type == "cpu"
    a, b = (score(model, TASK.items())[0].scores for model in (whole, spread))
    np.testing.assert_array_equal(a, b)


def test_bfloat16_is_close(tmp_path, tokenizer):
    folder = save_tiny("llama", tmp_path, tokenizer, initializer_range=0.05)
    conditions = [Knockout(HeadSet([head])) for head in heads_of(load(folder))]
    exact, rough = (score(load(folder, dtype=dtype), TASK.items(), conditions) for dtype in ("float32", "bfloat16"))
    for a, b in zip(exact, rough):
        np.testing.assert_allclose(a.scores, b.scores, rtol=0.03)


def check_against_naive_loop(model):
    items, heads = TASK.items(), list(random_heads(model, min(12, len(heads_of(model)))))
    for head, answers in zip(heads, score(model, items, [Knockout(HeadSet([head])) for head in heads])):
        module = weights_without(model, [head])
        expected = [naive_scores(module, model.tokenizer, item) for item in items]
        np.testing.assert_allclose(answers.scores, expected, atol=1e-3)
        np.testing.assert_array_equal(answers.predicted, np.argmax(expected, axis=1))


def test_eager_attention_scores_as_the_naive_loop(tmp_path, tokenizer):
    folder = save_tiny("llama", tmp_path, tokenizer)
    check_against_naive_loop(load(folder, attn_implementation="eager"))
