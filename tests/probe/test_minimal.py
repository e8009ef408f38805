from __future__ import annotations

import numpy as np
import pytest

from retrieval_heads.interventions.prune import Prune
from retrieval_heads.models.loading import load
from retrieval_heads.probe import minimal as module
from retrieval_heads.probe.answers import Answers
from retrieval_heads.probe.minimal import minimal
from retrieval_heads.tasks.kv_retrieval import KVRetrieval

TASK = KVRetrieval(pairs=2, dictionaries=2)  # guessing is right once in two


@pytest.fixture(scope="module")
def model(tiny_llama_folder):
    return load(tiny_llama_folder)


@pytest.fixture
def curve(monkeypatch):
    """Make the accuracies of the pruned models, of 100 items each, whatever these are."""

    def stage(*rights):
        def score(model, items, interventions, progress=None):
            assert interventions == [Prune(last=n) for n in range(len(interventions))]
            right = np.arange(100) < np.array(rights[: len(interventions)])[:, None]
            scores = np.stack([right, ~right], axis=-1).astype(float)
            return [Answers(each, each > 0, np.zeros(100, dtype=int)) for each in scores]

        monkeypatch.setattr(module, "score", score)

    return stage


@pytest.mark.parametrize(
    ("rights", "options", "last"),
    [
        ((100, 100, 60), {}, 1),
        ((100, 100, 100), {}, 2),
        ((100, 94, 100), {}, 0),  # 94 is 0.88 of what is above guessing; what comes after is not asked
        ((100, 94, 60), {"keep": 0.85}, 1),
        ((100, 100, 100), {"deepest": 1}, 1),
        ((100, 95, 94), {}, 1),  # 95 is 0.9 of it
    ],
)
def test_layers_go_while_the_task_stays(model, curve, rights, options, last):
    curve(*rights)
    assert minimal(model, TASK, **options) == Prune(last=last)


def test_what_cannot_be_pruned_is_refused(model, curve):
    curve(50, 50, 50)
    with pytest.raises(ValueError, match=r"answers 0\.50 of this task, guessing 0\.50"):
        minimal(model, TASK)
    with pytest.raises(ValueError, match=r"keep=0 is"):
        minimal(model, TASK, keep=0)


def test_more_layers_than_there_are_cannot_be_pruned(model):
    with pytest.raises(ValueError, match="last=4 is not between 0 and the model's 3 layers"):
        minimal(model, TASK, deepest=4)
