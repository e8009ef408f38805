"""The sweep: one knockout a head, for every head of a model (paper A, section 6.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ..heads import Head, HeadSet
from ..interventions.knockout import Knockout
from ..models.families import heads_of, resolve
from ..models.loading import describe
from ..tasks.items import Item, Task
from .answers import Answers
from .engine import INTACT, score
from .head_scores import HeadScores
from .race import race

if TYPE_CHECKING:
    from nnsight import TransformersModel


def sweep(
    model: TransformersModel,
    task: Task,
    heads: Iterable[Head | str] | None = None,
    *,
    top: int | None = None,
    resume: Path | None = None,
    progress: bool | None = None,
) -> HeadScores:
    """Knock out each head alone and score the task.

    Args:
        heads: the heads to try; None tries all.
        top: race for the ``top`` most damaging heads (:mod:`.race`): the others are scored on
            fewer items, as the table's column ``n`` says. None scores every head on every item.
        resume: a folder for finished passes, so that a rerun goes on where this one was stopped. Delete
            it when the result is safe.
        progress: show a bar; None shows it on a terminal only.

    Raises:
        ValueError: a head that the model does not have, or a task that the tokenizer cannot express.
    """
    tried = list(heads_of(model) if heads is None else resolve(model, heads))
    items = task.items(model.tokenizer)
    number = count(1)
    method = "knockout" if top is None else f"knockout, racing for the top {top}"
    header = {"model": describe(model), "task": task.describe(), "method": method}
    about = {f"{part}.{name}": value for part in ("model", "task") for name, value in header[part].items()}

    def ask(some: Sequence[Item], which: Sequence[int]) -> list[Answers]:
        alone = [Knockout(HeadSet([tried[i]])) for i in which]
        folder = None if resume is None else resume / f"round-{next(number)}"
        return score(model, some, [INTACT, *alone], resume=folder, about=about, progress=progress)

    everyone = range(len(tried))
    intact, *without = ask(items, everyone) if top is None else race(items, len(tried), top, ask)
    return HeadScores.compare(intact, zip(tried, without), header)
