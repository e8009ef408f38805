"""Racing against the full sweep: the same winners, on fewer samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_heads.probe.answers import Answers
from retrieval_heads.probe.race import can_reach_top, race, rounds
from retrieval_heads.tasks.items import Item


def items(contexts, each):
    return [Item(f"c{c}\n", f"q{q}", ("x", "y"), 0) for c in range(contexts) for q in range(each)]


def world(harms, n, seed):
    """Answers of a model to ``n`` two-way items, and without each head, which does its own mean harm."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(1.5, 1.5, n)
    every = [odds, *(odds - harm - rng.normal(0, 0.2 + abs(harm), n) for harm in harms)]
    return [np.stack([o, np.zeros(n)], axis=1) for o in every]


def run(harms, k, seed=0, contexts=24):
    scores, asked = world(harms, 20 * contexts, seed), []

    def score(some, which):
        start = sum(len(s) for s, _ in asked)
        asked.append((some, which))
        rows = slice(start, start + len(some))
        return [
            Answers(s[rows], s[rows] > 0, np.zeros(len(some), int))
            for s in (scores[0], *(scores[1 + i] for i in which))
        ]

    return race(items(contexts, 20), len(harms), k, score), asked


def test_the_winners_are_those_of_the_full_sweep_and_most_heads_stop_early():
    harms = [2.0, 1.5, 1.0, 0.8, 0.6] + [0.0] * 195
    missed, spent = 0, 0
    for seed in range(10):
        (intact, *answers), asked = run(harms, k=3, seed=seed)
        full = world(harms, 480, seed)
        means = [np.mean(full[0][:, 0] - without[:, 0]) for without in full[1:]]
        winners = set(np.argsort(means)[-3:])
        missed += len(winners - {i for i, a in enumerate(answers) if len(a) == len(intact)})
        spent += sum(len(some) * len(which) for some, which in asked)
    assert missed == 0
    assert spent < 0.25 * 10 * 480 * 200


def test_a_head_that_drops_out_keeps_its_first_answers():
    (intact, *answers), asked = run([3.0] + [0.0] * 20, k=1)
    assert len(intact) == 480
    assert len(answers[0]) in {len(intact), 60}
    assert min(len(a) for a in answers) == 60 and all(len(which) <= 21 for _, which in asked)
    np.testing.assert_array_equal(answers[5].scores, world([3.0] + [0.0] * 20, 480, 0)[6][: len(answers[5])])


@given(st.integers(1, 30), st.integers(1, 40))
def test_rounds_end_between_contexts_and_at_the_end(contexts, each):
    some = items(contexts, each)
    ends = rounds(some)
    assert ends == sorted(set(ends)) and ends[-1] == len(some)
    assert all(end % each == 0 for end in ends)


def test_equals_all_stay():
    assert can_reach_top(np.zeros((7, 50)), 2) == list(range(7))


@pytest.mark.parametrize("k", [0, 4])
def test_a_race_for_no_place_or_more_than_there_are_is_refused(k):
    with pytest.raises(ValueError, match="got 3 heads"):
        run([1.0, 0.0, 0.0], k)
