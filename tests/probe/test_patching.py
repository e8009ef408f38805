from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retrieval_heads.models.families import heads_of
from retrieval_heads.models.loading import load
from retrieval_heads.probe.engine import score
from retrieval_heads.probe.patching import patching
from retrieval_heads.tasks.kv_retrieval import KVRetrieval

TASK = KVRetrieval(pairs=3, dictionaries=2, queries=1, template="continuation", values="words", seed=3)


@pytest.fixture(scope="module")
def model(tiny_llama_folder):
    return load(tiny_llama_folder)


@pytest.fixture(scope="module")
def pairs():
    """Items whose values are letters: a counterfactual of as many tokens, where a byte is a token."""
    items = []
    for item in TASK.items():
        context = item.context
        for word, letter in zip(item.candidates, "xyz"):
            context = context.replace(f":{word}\n", f":{letter}\n")
        items.append(replace(item, context=context, candidates=("x", "y", "z")))
    return [(item, TASK.counterfactual(item)) for item in items]


def test_a_counterfactual_is_the_same_dictionary_with_two_values_exchanged():
    for item in KVRetrieval(pairs=5, dictionaries=2, template="continuation", spaced=True).items():
        other = TASK.counterfactual(item)
        before, after = (dict(line.split(": ") for line in each.context.splitlines()[1:]) for each in (item, other))
        key = item.question.rstrip(":")
        assert list(before) == list(after) and sorted(before.values()) == sorted(after.values())
        assert sum(before[k] != after[k] for k in before) == 2
        assert before[key] == item.candidates[item.answer].strip()
        assert after[key] == other.candidates[other.answer].strip()
        assert (other.question, other.candidates) == (item.question, item.candidates)


def test_nothing_restores_nothing_and_everything_all(model, pairs):
    table = patching(model, pairs, [[], heads_of(model), "L1H2"])
    restored = table.pivot(index="item", columns="heads", values="restored")
    assert np.allclose(restored[""], 0, atol=1e-4)
    assert np.allclose(restored[" ".join(map(str, heads_of(model)))], 1, atol=1e-4)
    assert (restored["L1H2"].abs() > 1e-4).all()


def test_the_log_odds_are_those_of_the_two_prompts(model, pairs):
    table = patching(model, pairs, ["L0H0"])
    for row, (clean, other) in zip(table.itertuples(), pairs, strict=True):
        for found, item in ((row.clean, clean), (row.counterfactual, other)):
            (answers,) = score(model, [item])
            assert found == pytest.approx(answers.scores[0, clean.answer] - answers.scores[0, other.answer])


def test_pairs_that_do_not_fit_are_refused(model, pairs):
    (item, other), *_ = pairs
    with pytest.raises(ValueError, match="at least one pair"):
        patching(model, [], ["L0H0"])
    with pytest.raises(ValueError, match="pair 0: a counterfactual has"):
        patching(model, [(item, item)], ["L0H0"])
    longer = replace(other, context=other.context.replace("Memorize", "Do memorize"))
    with pytest.raises(Exception, match="equally many tokens"):
        patching(model, [(item, longer)], ["L0H0"])
