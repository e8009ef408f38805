"""Figures show the data that they are given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from retrieval_heads import plots
from retrieval_heads.heads import Head
from retrieval_heads.probe.answers import Answers
from retrieval_heads.probe.head_scores import HeadScores


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)

    def answers(rate):
        right = rng.random(50) < rate
        table = np.where(right[:, None], [[0.0, -1.0]], [[-1.0, 0.0]])
        return Answers(table, table == 0, np.zeros(50, int))

    without = [
        (Head(layer, head), answers(0.2 if (layer, head) == (2, 1) else 0.9)) for layer in range(4) for head in range(3)
    ]
    header = {"model": {"name": "a-model"}, "task": {"task": "kv_retrieval"}}
    return HeadScores.compare(answers(0.95), without, header)


def test_the_map_has_every_head_in_its_place_and_names_the_worst(scores):
    axes = plots.head_map(scores, name=2).axes[0]
    drawn = axes.collections[0].get_array().reshape(3, 4)  # heads × layers
    for row in scores.table.itertuples():
        assert drawn[row.head, row.layer] == pytest.approx(row.drop)
    assert [text.get_text() for text in axes.texts] == ["1", "2"]
    assert axes.texts[0].get_position()[0] == 2.5 and "1 L2H1" in axes.get_title(loc="left")


def test_the_ranking_has_the_worst_on_top(scores):
    axes = plots.head_ranking(scores, count=3).axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [head.label for head in scores.ranking[:3]][::-1]


def test_curves_and_changes_draw_one_line_or_row_a_condition():
    rows = [(c, "accuracy", v, v - 0.1, v + 0.1, 10, x) for c, v in (("a", 0.8), ("b", 0.4)) for x in (5, 10)]
    table = pd.DataFrame(rows, columns=["condition", "measure", "value", "low", "high", "n", "pairs"]).assign(
        chance=0.1
    )
    axes = plots.curves(table, "pairs", chance="chance").axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "guessing"]
    assert axes.lines[1].get_ydata().tolist() == [0.4, 0.4]
    both = pd.concat([table.assign(model="m"), table[table.pairs == 5].assign(model="n")])
    left, right = plots.curves(both, "pairs", panel="model").axes
    assert [left.get_title(loc="left"), right.get_title(loc="left")] == ["m", "n"]
    assert [len(axes.lines[0].get_xdata()) for axes in (left, right)] == [2, 1]
    below = plots.curves(both, "pairs", panel="model", columns=1).axes
    assert below[0].get_position().y0 > below[1].get_position().y1 and below[1].get_ylabel() == "accuracy"
    changed = table[table.pairs == 5].assign(change=[0, -0.4], change_low=[0, -0.5], change_high=[0, -0.3])
    axes = plots.changes(changed).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b"]
    assert axes.lines[0].get_xdata().tolist() == [-0.4]


def test_two_scores_names_the_heads_it_is_asked_to():
    table = pd.DataFrame({"layer": [0, 2], "head": [1, 3], "x": [0.1, 0.5], "y": [0.2, 0.1], "panel": ["p", "p"]})
    axes = plots.two_scores(table, "x", "y", "panel", name=[Head(2, 3)]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["L2H3"]
    assert axes.collections[0].get_offsets().tolist() == [[0.1, 0.2], [0.5, 0.1]]
    lines = [len(plots.two_scores(table, "x", "y", "panel", diagonal=each).axes[0].lines) for each in (True, False)]
    assert lines == [1, 0]


def test_the_role_map_has_each_share_at_its_head():
    roles = pd.DataFrame({"head": ["L0H1", "L2H0"], "gather": [0.9, 0.1], "aggregate": [0.0, 0.7]})
    gather, aggregate = plots.role_map(roles).axes[:2]
    for axes, at in ((gather, {(1, 0): 0.9, (0, 2): 0.1}), (aggregate, {(1, 0): 0.0, (0, 2): 0.7})):
        grid = axes.collections[0].get_array().reshape(2, 3)
        assert {place: grid[place] for place in at} == at
        assert grid.mask.sum() == 4  # heads that were not measured


def test_bars_are_a_measure_and_condition_each():
    rows = [("m", c, k, v, v - 0.1, v + 0.1, 10) for c, v in (("a", 0.8), ("b", 0.4)) for k in ("facts", "needle")]
    table = pd.DataFrame(rows, columns=["model", "condition", "measure", "value", "low", "high", "n"])
    both = pd.concat([table, table.assign(model="n")])
    left, right = plots.bars(both).axes
    assert left.get_position().y0 == right.get_position().y0
    above, below = plots.bars(both, columns=1).axes
    assert above.get_position().y0 > below.get_position().y1
    assert [label.get_text() for label in left.get_xticklabels()] == ["facts", "needle"]
    heights = [[bar.get_height() for bar in bars.patches] for bars in left.containers if hasattr(bars, "patches")]
    assert heights == [[0.8, 0.8], [0.4, 0.4]]


def test_retrieval_maps_have_the_end_of_the_prompt_at_the_bottom():
    rows = [(c, t, d, t / 1000 + d / 10) for c in ("intact", "k = 0") for t in (128, 64) for d in (0, 0.5, 1)]
    figure = plots.retrieval_maps(pd.DataFrame(rows, columns=["condition", "tokens", "depth", "value"]))
    left, right = figure.axes
    assert [left.get_title(loc="left"), right.get_title(loc="left")] == ["intact", "k = 0"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["100%", "50%", "0%"]
    grid = right.collections[0].get_array().reshape(3, 2)
    assert grid[-1].tolist() == [0.064, 0.128] and grid[0, 0] == pytest.approx(0.164)


@pytest.fixture
def training():
    rows = [
        (model, tokens, 4.0 - tokens / 100, kind, tokens / 400)
        for model in ("a", "b")
        for tokens in (100, 200, 300)
        for kind in ("copies", "facts", "letters")
    ]
    return pd.DataFrame(rows, columns=["model", "tokens", "loss", "kind", "right"])


def test_loss_curves_have_one_line_a_model_and_one_point_a_step(training):
    lines = [line for line in plots.loss_curves(training).axes[0].lines if len(line.get_xdata())]
    assert len(lines) == 2
    for line in lines:
        assert line.get_xdata().tolist() == [100, 200, 300] and line.get_ydata().tolist() == [3, 2, 1]


def test_emergence_has_a_panel_a_kind_in_the_order_asked_for(training):
    figure = plots.emergence(training, ["letters", "copies"])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["letters", "copies"]
    assert figure.axes[1].lines[0].get_ydata().tolist() == [0.25, 0.5, 0.75]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_the_score_map_shows_the_accuracies_and_colours_what_is_above_guessing():
    scores = pd.DataFrame({"facts": [1.0, 0.25], "kv": [0.55, 0.1]}, index=["a", "b"])
    axes = plots.score_map(scores, pd.Series({"facts": 0.25, "kv": 0.1})).axes[0]
    assert [text.get_text() for text in axes.texts] == ["1.00", "0.55", "0.25", "0.10"]
    assert axes.collections[0].get_array().reshape(2, 2)[:, 1].tolist() == pytest.approx([0.5, 0.0])
    assert axes.get_xticklabels()[1].get_text() == "kv  (0.10)"


def test_mixing_maps_are_shares_with_tokens_on_both_axes_and_lines_between_segments():
    tokens, matrix = ["a", " b", "\n", "c"], np.tril(-np.ones((4, 4)))
    figure = plots.mixing_maps({"one": matrix, "two": np.eye(4), "three": matrix}, tokens, columns=2)
    one, two, three, empty = figure.axes
    assert [axes.get_title(loc="left") for axes in (one, two, three)] == ["one", "two", "three"]
    assert not empty.get_visible()
    drawn = one.collections[0].get_array().reshape(4, 4)
    assert drawn[3].tolist() == [0.25] * 4 and drawn.mask[0].tolist() == [False, True, True, True]
    for labels in (one.get_xticklabels(), one.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["a", "b", "⏎", "c"]
    (across,) = one.collections[1].get_segments()
    assert across.tolist() == [[0, 3], [3, 3]]
    other = {"one": tokens, "two": ["d", "e"]}  # two models cut a prompt differently
    one, two = plots.mixing_maps({"one": matrix, "two": np.eye(2)}, other).axes
    assert [len(axes.get_yticklabels()) for axes in (one, two)] == [4, 2]
