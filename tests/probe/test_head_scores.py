from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from retrieval_heads.heads import Head, HeadSet
from retrieval_heads.models.loading import load
from retrieval_heads.probe.answers import Answers
from retrieval_heads.probe.engine import score
from retrieval_heads.probe.head_scores import COLUMNS, HeadScores
from retrieval_heads.probe.sweep import sweep
from retrieval_heads.tasks.kv_retrieval import KVRetrieval

from ..oracles import naive_scores, weights_without

TASK = KVRetrieval(pairs=3, dictionaries=4, template="continuation", seed=2)


@pytest.fixture(scope="module")
def model(tiny_llama_folder):
    return load(tiny_llama_folder)


@pytest.fixture(scope="module")
def scores(model):
    return sweep(model, TASK)


def test_the_sweep_is_the_naive_loop_with_surgery(model, scores):
    items = TASK.items()

    def right(heads):
        module = weights_without(model, heads)
        return [int(np.argmax(naive_scores(module, model.tokenizer, item))) == item.answer for item in items]

    intact = np.mean(right([]))
    assert scores.header["intact"]["value"] == pytest.approx(intact)
    for row in scores.table.itertuples():
        without = np.mean(right([Head(row.layer, row.head)]))
        assert row.accuracy == pytest.approx(without) and row.drop == pytest.approx(intact - without)


def test_the_table_is_complete_and_ordered(scores):
    table = scores.table
    assert tuple(table.columns) == COLUMNS and len(table) == 12 and not table.isna().any().any()
    assert table["drop"].is_monotonic_decreasing
    assert (table.accuracy_low <= table.accuracy).all() and (table.accuracy <= table.accuracy_high).all()
    assert (table.drop_low <= table["drop"]).all() and (table["drop"] <= table.drop_high).all()
    assert scores.top(2) == HeadSet(scores.ranking[:2])
    assert scores.grid().shape == (3, 4)
    with pytest.raises(ValueError, match="count=13 is not between 0 and the table's 12 heads"):
        scores.top(13)


def test_a_table_is_loaded_as_it_was_saved_and_others_can_read_it(scores, tmp_path):
    path = scores.save(tmp_path / "new folder" / "scores.csv")
    again = HeadScores.load(path)
    assert again.header == scores.header and again.ranking == scores.ranking
    pd.testing.assert_frame_equal(again.table, scores.table, rtol=1e-5)
    pd.testing.assert_frame_equal(pd.read_csv(path, comment="#"), again.table, check_dtype=False)
    header = json.loads(path.read_text().split("\n")[0].removeprefix("# "))
    assert header["task"] == TASK.describe() and header["model"]["fingerprint"] and header["model"]["torch"]
    assert list(path.parent.iterdir()) == [path]


def test_other_files_are_not_taken_for_tables(scores, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.csv"):
        scores.save(tmp_path / "scores.parquet")
    (tmp_path / "a.csv").write_text("layer,head\n1,2\n")
    with pytest.raises(ValueError, match="not a table of head scores"):
        HeadScores.load(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("# {}\nlayer,head\n1,2\n")
    with pytest.raises(ValueError, match=r"has the columns \['layer', 'head'\]"):
        HeadScores.load(tmp_path / "b.csv")


def test_a_racing_sweep_agrees_with_the_full_one_on_what_it_asked(model, scores):
    raced = sweep(model, TASK, top=3)
    full = scores.table.set_index(["layer", "head"])
    for row in raced.table.itertuples():
        assert row.n == len(TASK.items())  # fewer than a first round: all are asked everything
        assert row.accuracy == pytest.approx(full.accuracy[row.layer, row.head])
    assert raced.header["method"] == "knockout, racing for the top 3"


def test_some_heads_only(model, scores):
    some = sweep(model, TASK, ["L1H2", "L0H3"])
    assert set(some.ranking) == {Head(1, 2), Head(0, 3)}


def test_comparing_uses_the_same_items():
    def answers(right):
        right = np.array(right)
        scores = np.where(right[:, None], [[0.0, -1.0]], [[-1.0, 0.0]])
        return Answers(scores, scores == 0, np.zeros(len(right), int))

    intact = answers([1, 1, 0, 0])
    table = HeadScores.compare(intact, [(Head(0, 0), answers([0, 1]))], {}).table
    assert table.n[0] == 2 and table.accuracy[0] == 0.5 and table["drop"][0] == 0.5


def test_answers_of_different_widths_join(model):
    three, five = (KVRetrieval(pairs=p, dictionaries=1, template="continuation").items() for p in (3, 5))
    a, b, both = score(model, three)[0], score(model, five)[0], score(model, three + five)[0]
    np.testing.assert_allclose(a.join(b).scores, both.scores, atol=1e-5)
    np.testing.assert_array_equal(a.join(b).answer, both.answer)
    assert both.chance == pytest.approx((3 / 3 + 5 / 5) / 8)


def test_log_odds_are_against_all_other_candidates():
    probabilities = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, np.nan]])
    answers = Answers(np.log(probabilities), np.zeros((2, 3), bool), np.array([0, 1]))
    np.testing.assert_allclose(answers.log_odds, np.log([0.5 / 0.5, 0.6 / 0.1]))
