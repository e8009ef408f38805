from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from retrieval_heads.heads import Head
from retrieval_heads.mixing import roles as roles_module
from retrieval_heads.mixing.attention import attention_weights
from retrieval_heads.mixing.roles import roles
from retrieval_heads.models.loading import load
from retrieval_heads.tasks.kv_retrieval import KVRetrieval

TASK = KVRetrieval(pairs=4, dictionaries=2, queries=2, template="continuation")


@pytest.fixture(scope="module")
def model(tiny_llama_folder):
    return load(tiny_llama_folder)


def test_weights_are_those_of_transformers(model, tiny_llama_folder):
    eager = AutoModelForCausalLM.from_pretrained(tiny_llama_folder, attn_implementation="eager")
    ids = model.tokenizer("a:1\nb:2\n", return_tensors="pt").input_ids
    with torch.no_grad():
        expected = eager(ids, output_attentions=True).attentions
    for head, weights in attention_weights(model, "a:1\nb:2\n", ["L0H1", "L2H3"]).items():
        torch.testing.assert_close(weights, expected[head.layer][0, head.index], atol=1e-6, rtol=0)
        torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)))


def test_the_model_keeps_its_own_attention(model):
    before = model.config._attn_implementation
    attention_weights(model, "abc", ["L0H0"])
    assert model.config._attn_implementation == before != "eager"


def test_only_attention_heads_have_attention(model):
    with pytest.raises(ValueError, match="does not exist"):
        attention_weights(model, "abc", [Head(0, 0, "mamba2")])


def staged(paid):
    """Attention that pays all, from every token, as ``paid(tokens)`` says: target index for each token."""

    def weights(model, prompt, heads):
        tokens = model.tokenizer.encode(prompt)
        matrix = torch.zeros(len(tokens), len(tokens))
        for i, target in enumerate(paid(prompt)):
            matrix[i, target] = 1
        return dict.fromkeys(heads, matrix)

    return weights


def own_line_start(prompt):
    return [prompt.rfind("\n", 0, i) + 1 for i in range(len(prompt))]


def right_value(prompt):
    key = prompt.rsplit("\n", 1)[1]
    return [0] * (len(prompt) - 1) + [prompt.index("\n" + key) + 1 + len(key)]


@pytest.mark.parametrize(
    ("paid", "expected"),
    [
        (own_line_start, (1.0, 0.0, "Gather")),
        (right_value, (0.0, 1.0, "Aggregate")),
        (lambda p: [0] * len(p), (0.0, 0.0, "neither")),
    ],
)
def test_roles_are_read_off_the_attention(model, monkeypatch, paid, expected):
    monkeypatch.setattr(roles_module, "attention_weights", staged(paid))  # one token a byte
    (row,) = roles(model, TASK.items(), ["L0H0"]).itertuples(index=False)
    assert tuple(row) == ("L0H0", *expected)


def test_roles_of_a_real_pass_are_shares(model):
    table = roles(model, TASK.items(), ["L0H0", "L1H2"])
    assert np.all((table[["gather", "aggregate"]] >= 0) & (table[["gather", "aggregate"]] <= 1))


@pytest.mark.parametrize(
    ("items", "message"), [([], "at least one item"), (KVRetrieval(pairs=3, dictionaries=1).items(), "continuation")]
)
def test_prompts_without_roles_are_refused(model, items, message):
    with pytest.raises(ValueError, match=message):
        roles(model, items, ["L0H0"])
