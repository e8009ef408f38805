from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from retrieval_heads.mixing import reads as reads_module
from retrieval_heads.mixing.matrices import Mixing, mixings
from retrieval_heads.mixing.reads import profiles, reads
from retrieval_heads.mixing.roles import roles
from retrieval_heads.models.loading import load
from retrieval_heads.tasks.kv_retrieval import KVRetrieval

TASK = KVRetrieval(pairs=4, dictionaries=2, queries=2, template="continuation")
PARTS = ["segment", "itself", "leaked", "sink"]


@pytest.fixture(scope="module")
def model(tiny_llama_folder):
    return load(tiny_llama_folder)


def staged(paid):
    """A head whose every row is shared out evenly over the tokens that ``paid(prompt, i)`` says."""

    def mixings(model, prompt, heads):
        matrix = torch.zeros(len(prompt), len(prompt))  # one token a byte
        for i in range(len(prompt)):
            for j in paid(prompt, i):
                matrix[i, j] += -3  # whatever its size and sign
        return dict.fromkeys(heads, Mixing(matrix, torch.zeros(len(prompt), 1)))

    return mixings


def asked_line_start(prompt):
    return prompt.index("\n" + prompt.rsplit("\n", 1)[1]) + 1


def before(prompt, i):
    """The token before this one; of the target, the first of the right line."""
    return [asked_line_start(prompt) if i == len(prompt) - 1 else max(i - 1, 0)]


def in_four(prompt, i):
    """The sink, the token itself, and the last two tokens of the line before (of the target: the right line)."""
    start = prompt.rfind("\n", 0, i) + 1
    if i == len(prompt) - 1:
        start = prompt.index("\n", asked_line_start(prompt)) + 1
    return [0, i, start - 1, start - 2] if start > 1 else [0]


@pytest.mark.parametrize(
    ("paid", "summary", "target"),
    [  # segment, itself, leaked, sink, largest, entropy
        (before, (1, 0, 0, 0, 1, 0), (1, 0, 0, 0, 1, 0)),
        (in_four, (0, 0.25, 0.5, 0.25, 0, np.log(2)), (0.5, 0.25, 0, 0.25, 0, np.log(2))),
        (lambda p, i: [0], (0, 0, 0, 1, 0, 0), (0, 0, 0, 1, 0, 0)),
        (lambda p, i: [i], (0, 1, 0, 0, 0, 0), (0, 1, 0, 0, 0, 0)),
    ],
)
def test_reads_share_out_the_rows(model, monkeypatch, paid, summary, target):
    monkeypatch.setattr(reads_module, "mixings", staged(paid))
    table = reads(model, TASK.items()[:1], ["L0H0"]).set_index("row")
    columns = [*PARTS, "largest", "entropy"]
    assert table.loc["summary", columns].tolist() == pytest.approx(summary)
    assert table.loc["target", columns].tolist() == pytest.approx(target)


def test_profiles_have_each_weight_at_its_place(model, monkeypatch):
    monkeypatch.setattr(reads_module, "mixings", staged(in_four))
    table = profiles(model, TASK.items()[:1], ["L0H0"], reach=2).set_index(["row", "place"]).share
    assert table["target"].to_dict() == {-2: 0, -1: 0.25, 0: 0.25, 1: 0, 2: 0}
    assert table["summary"].to_dict() == {-2: 0, -1: 0, 0: 0.25}
    monkeypatch.setattr(reads_module, "mixings", staged(before))
    table = profiles(model, TASK.items()[:1], ["L0H0"], reach=2).set_index(["row", "place"]).share
    assert table["summary"].to_dict() == {-2: 0, -1: 1, 0: 0}


def test_reads_of_real_heads_add_up_and_agree_with_their_roles(model):
    items, heads = TASK.items(), ["L0H1", "L2H3"]
    table = reads(model, items, heads)
    assert len(table) == len(items) * len(heads) * 2
    assert np.allclose(table[PARTS].sum(axis=1), 1, atol=1e-6)
    wide = table.groupby(["head", "row"]).segment.mean().unstack()
    known = roles(model, items, heads).set_index("head")
    pd.testing.assert_series_equal(wide["summary"], known["gather"], check_names=False)
    pd.testing.assert_series_equal(wide["target"], known["aggregate"], check_names=False)


def test_profiles_of_real_heads_are_their_weights(model):
    (item,) = TASK.items()[:1]
    table = profiles(model, [item], ["L2H3"], reach=3).set_index(["row", "place"]).share
    (mixing,) = mixings(model, item.prompt, ["L2H3"]).values()
    right = item.prompt.index("\n", asked_line_start(item.prompt))
    assert table["target"].tolist() == pytest.approx(mixing.matrix[-1, right - 3 : right + 4].tolist())
    ends = [i for i, letter in enumerate(item.prompt) if letter == "\n"][1:]
    assert table["summary", 0] == pytest.approx(np.mean([mixing.matrix[i, i] for i in ends]))


def test_prompts_that_cannot_be_read_so_are_refused(model):
    with pytest.raises(ValueError, match="at least one item"):
        reads(model, [], ["L0H0"])
    with pytest.raises(ValueError, match="continuation"):
        profiles(model, KVRetrieval(pairs=3, dictionaries=1).items(), ["L0H0"])
    with pytest.raises(ValueError, match="negative"):
        profiles(model, TASK.items()[:1], ["L0H0"], reach=-1)
