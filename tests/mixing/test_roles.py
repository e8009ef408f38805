from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from retrieval_heads.mixing import roles as roles_module
from retrieval_heads.mixing.matrices import Mixing
from retrieval_heads.mixing.roles import roles
from retrieval_heads.models.loading import load
from retrieval_heads.tasks.kv_retrieval import KVRetrieval

from ..families import save_tiny

TASK = KVRetrieval(pairs=4, dictionaries=2, queries=2, template="continuation")


@pytest.fixture(scope="module")
def model(tiny_llama_folder):
    return load(tiny_llama_folder)


def staged(paid):
    """A head whose every row is all on one token: the one that ``paid(prompt)`` says for each token."""

    def mixings(model, prompt, heads):
        tokens = model.tokenizer.encode(prompt)
        matrix = torch.zeros(len(tokens), len(tokens))
        for i, target in enumerate(paid(prompt)):
            matrix[i, target] = -3  # whatever its size and sign, it is all that the row has
        return dict.fromkeys(heads, Mixing(matrix, torch.zeros(len(tokens), 1)))

    return mixings


def own_line_start(prompt):
    return [prompt.rfind("\n", 0, i) + 1 for i in range(len(prompt))]


def right_value(prompt):
    key = prompt.rsplit("\n", 1)[1]
    return [0] * (len(prompt) - 1) + [prompt.index("\n" + key) + 1 + len(key)]


def itself(prompt):
    return range(len(prompt))


@pytest.mark.parametrize(
    ("paid", "expected"),
    [
        (own_line_start, (1.0, 0.0, "Gather")),
        (right_value, (0.0, 1.0, "Aggregate")),
        (lambda p: [0] * len(p), (0.0, 0.0, "neither")),
        (itself, (0.0, 0.0, "neither")),
    ],
)
def test_roles_are_read_off_the_matrix(model, monkeypatch, paid, expected):
    monkeypatch.setattr(roles_module, "mixings", staged(paid))  # one token a byte
    (row,) = roles(model, TASK.items(), ["L0H0"]).itertuples(index=False)
    assert tuple(row) == ("L0H0", *expected)


def test_roles_of_attention_are_sums_of_its_weights(model, tiny_llama_folder):
    """Counted here from the weights that transformers gives."""
    eager = AutoModelForCausalLM.from_pretrained(tiny_llama_folder, attn_implementation="eager")
    (item,) = TASK.items()[:1]
    ids = model.tokenizer(item.prompt, return_tensors="pt").input_ids  # one token a byte
    with torch.no_grad():
        weights = eager(ids, output_attentions=True).attentions[2][0, 3]
    gathers, start = [], item.prompt.index("\n") + 1
    for line in item.context.splitlines()[1:]:
        gathers.append(weights[start + len(line), start : start + len(line)].sum().item())
        start += len(line) + 1
    asked = item.context.index("\n" + item.question) + 1
    aggregate = weights[-1, asked : item.context.index("\n", asked) + 1].sum().item()
    (row,) = roles(model, [item], ["L2H3"]).itertuples(index=False)
    assert row[1:3] == pytest.approx((np.mean(gathers), aggregate), abs=1e-6)


def test_roles_of_heads_of_two_kinds(tmp_path, tiny_llama_folder):
    hybrid = load(save_tiny("zamba2", tmp_path, AutoTokenizer.from_pretrained(tiny_llama_folder)))
    table = roles(hybrid, TASK.items()[:1], ["L2H1", "L2H1:mamba2"])
    assert table["head"].tolist() == ["L2H1", "L2H1:mamba2"]
    assert (table["gather"].between(0, 1) & table["aggregate"].between(0, 1)).all()
    assert table["gather"].nunique() == 2


@pytest.mark.parametrize(
    ("items", "message"), [([], "at least one item"), (KVRetrieval(pairs=3, dictionaries=1).items(), "continuation")]
)
def test_prompts_without_roles_are_refused(model, items, message):
    with pytest.raises(ValueError, match=message):
        roles(model, items, ["L0H0"])
