"""What a model of the zoo has learned: every task of the world, on samples that no training text holds.

Facts are learned by heart and asked as they were learned. Everything else is new: letters and
dialogues ask about facts whose letter form was held out; dictionaries, needles and sums are drawn
from numbers that training never draws from, out of far more possibilities than it has ever seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..models.loading import load
from ..probe.engine import score
from ..tasks.counting import CountingUp
from ..tasks.items import Task
from ..tasks.kv_retrieval import KVRetrieval
from ..tasks.needle import Needle
from ..tasks.world_facts import WorldFacts, WorldLetters
from .records import record, write_record

if TYPE_CHECKING:
    from nnsight import TransformersModel

PAIRS = (4, 8, 12, 16, 20, 24)
NEEDLES = (128, 256, 512)


def tasks(seed: int = 0) -> dict[str, Task]:
    """The evaluation, by name."""

    def kv(pairs: int, **options) -> KVRetrieval:
        return KVRetrieval(pairs=pairs, dictionaries=50, queries=4, single_token=True, seed=seed, **options)

    return {
        "facts": WorldFacts(count=500, seed=seed),
        "letters": WorldLetters(count=200, seed=seed),
        "dialogue": WorldLetters(form="dialogue", count=200, seed=seed),
        **{f"kv {pairs}": kv(pairs, template="continuation", values="words") for pairs in PAIRS},
        "kv 16 published": kv(16, template="published", values="numbers"),
        **{f"needle {tokens}": Needle(tokens=tokens, seed=seed) for tokens in NEEDLES},
        "needle 256 twice": Needle(tokens=256, read_twice=True, seed=seed),
        "counting up": CountingUp(seed=seed),
    }


def evaluate(
    model: TransformersModel, seed: int = 0, *, only: Sequence[str] | None = None, progress: bool | None = None
) -> dict[str, dict]:
    """Accuracy by answer scoring in every task.

    Args:
        only: the names of some of the tasks, such as ``"kv 16"``; None means all.

    Returns:
        For each task ``value``, ``low``, ``high`` (Wilson, 95 %), ``n``, and ``chance``, the accuracy of guessing.

    Raises:
        ValueError: a name that no task has.
    """
    every = tasks(seed)
    if unknown := set(only or ()) - set(every):
        raise ValueError(f"no task is called {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    found = {}
    for name in every if only is None else only:
        task = every[name]
        items = task.items(model.tokenizer)
        (answers,) = score(model, items, progress=progress)
        found[name] = {**answers.interval()._asdict(), "chance": answers.chance}
    return found


def examine(folder: Path, *, progress: bool | None = None) -> dict:
    """Evaluate the model in ``folder`` as it is stored there, and add that to its record.

    Raises:
        LoadError: the folder has no trained model.
    """
    found = record(folder)
    found["evaluation"] = evaluate(load(folder), progress=progress)
    write_record(folder, found)
    return found
