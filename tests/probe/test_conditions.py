from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from retrieval_heads.evidence.intervals import bootstrap_mean, wilson
from retrieval_heads.heads import HeadSet
from retrieval_heads.interventions.knockout import Knockout
from retrieval_heads.models.loading import load
from retrieval_heads.probe.conditions import LOSS, compare, estimate, show
from retrieval_heads.probe.engine import score
from retrieval_heads.probe.language_loss import language_loss
from retrieval_heads.tasks.kv_retrieval import KVRetrieval
from retrieval_heads.tasks.running_text import RunningText

from ..oracles import weights_without

HEADS = HeadSet(["L0H1", "L1H3", "L2H0"])
TASK = KVRetrieval(pairs=3, dictionaries=2, template="continuation")


@pytest.fixture(scope="module")
def model(tiny_llama_folder):
    return load(tiny_llama_folder)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(
        "It was a bright cold day in April, and the clocks were striking thirteen. " * 20
    )
    return RunningText(windows=5, window_tokens=40, source=tmp_path / "text.txt")


def test_loss_is_the_cross_entropy_of_each_window(model, text):
    windows = text.token_windows(model.tokenizer)
    losses = language_loss(model, windows, [Knockout(HeadSet()), Knockout(HEADS)])
    for row, module in zip(losses, (model._module, weights_without(model, list(HEADS)))):
        with torch.no_grad():
            logits = module(windows).logits
        expected = [cross_entropy(line[:-1], window[1:]).item() for line, window in zip(logits, windows)]
        np.testing.assert_allclose(row, expected, atol=1e-5)
    assert abs(losses[0] - losses[1]).min() > 1e-3


@pytest.mark.parametrize("shape", [(3,), (2, 1)])
def test_windows_with_nothing_to_predict_are_refused(model, shape):
    with pytest.raises(ValueError, match="at least 2 tokens"):
        language_loss(model, torch.zeros(shape, dtype=torch.long), [Knockout(HeadSet())])


def test_the_table_says_what_was_scored(model, text):
    table = compare(model, {"nothing": [], "three": HEADS}, {"KV": TASK}, text)
    assert list(table.condition) == ["nothing", "three"] * 2 and list(table.measure) == ["KV"] * 2 + [LOSS] * 2
    both = score(model, TASK.items(), [Knockout(HeadSet()), Knockout(HEADS)])
    for row, answers in zip(table.itertuples(), both):
        assert (row.value, row.low, row.high, row.n) == wilson(int(answers.correct.sum()), len(answers))
        change = bootstrap_mean(answers.correct.astype(float) - both[0].correct)
        assert (row.change, row.change_low, row.change_high) == change[:3]
    nothing, three = table[table.measure == LOSS].itertuples()
    assert (nothing.change, nothing.change_low, nothing.change_high, nothing.n) == (0, 0, 0, 5)
    assert three.change == pytest.approx(three.value - nothing.value)
    assert three.change_high - three.change_low < three.high - three.low  # paired: what the windows share cancels


def test_a_table_to_read(model):
    shown = show(compare(model, {"b": [], "a": ["L0H0"]}, {"KV": TASK, "again": TASK}))
    assert list(shown.index) == ["b", "a"] and list(shown.columns) == ["KV", "again"]
    assert shown.loc["a", "KV"].count("[") == 1
    changes = show(compare(model, {"b": [], "a": ["L0H0"]}, {"KV": TASK}), "change")
    assert changes.loc["b", "KV"] == "+0.00 [+0.00, +0.00]"


def test_an_estimate_is_one_row_of_the_table(model):
    table = compare(model, {"intact": [], "without": HEADS}, {"KV": TASK})
    found = estimate(table, condition="without", measure="KV")
    assert tuple(found) == tuple(table.iloc[1][["value", "low", "high", "n"]])
    lost = -estimate(table, "change", condition="without")
    assert tuple(lost[:3]) == tuple(-table.iloc[1][["change", "change_high", "change_low"]])
    for chosen in ({"measure": "KV"}, {"condition": "other"}):
        with pytest.raises(ValueError, match="rows of the table have"):
            estimate(table, **chosen)
