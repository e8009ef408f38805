"""The sweep: one knockout a head, for every head of a model (paper A, section 6.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..heads import Head, HeadSet
from ..interventions.knockout import Knockout
from ..models.families import heads_of, resolve
from ..models.loading import describe
from ..tasks.items import Task
from .engine import INTACT, score
from .head_scores import HeadScores

if TYPE_CHECKING:
    from nnsight import TransformersModel


def sweep(
    model: TransformersModel,
    task: Task,
    heads: Iterable[Head | str] | None = None,
    *,
    progress: bool | None = None,
) -> HeadScores:
    """Knock out each head alone and score the task.

    Args:
        heads: the heads to try; None tries all.
        progress: show a bar; None shows it on a terminal only.

    Raises:
        ValueError: a head that the model does not have, or a task that the tokenizer cannot express.
    """
    tried = list(heads_of(model) if heads is None else resolve(model, heads))
    items = task.items(model.tokenizer)
    alone = [Knockout(HeadSet([head])) for head in tried]
    intact, *without = score(model, items, [INTACT, *alone], progress=progress)
    header = {"model": describe(model), "task": task.describe(), "method": "knockout"}
    return HeadScores.compare(intact, zip(tried, without), header)
