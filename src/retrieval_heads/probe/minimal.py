"""The minimal model: the fewest layers that still do the task (paper A, sections 3.2 and 3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..interventions.prune import Prune
from ..tasks.items import Task
from .engine import score

if TYPE_CHECKING:
    from nnsight import TransformersModel


def minimal(
    model: TransformersModel, task: Task, keep: float = 0.9, deepest: int | None = None, *, progress: bool | None = None
) -> Prune:
    """Prune layers from the end for as long as the model keeps the task.

    In use::

        pruned = minimal(model, KVRetrieval(seed=1))
        last_two = range(model.config.num_hidden_layers - pruned.last)[-2:]

    Args:
        keep: the share of the intact accuracy above guessing that has to be left. The first layer whose removal goes
            below it stays, and so do all before it, even if removing more layers would do better again.
        deepest: try to prune at most so many layers; None, all but one.
        progress: show a bar; None shows it on a terminal only.

    Returns:
        The intervention that leaves the minimal model; it prunes nothing where every layer is needed.

    Raises:
        ValueError: the intact model does no better than guessing, ``keep`` is not above 0 and at most 1, or the model
            does not have so many layers.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep={keep} is not above 0 and at most 1")
    deepest = model.config.num_hidden_layers - 1 if deepest is None else deepest
    pruned = [Prune(last=count) for count in range(deepest + 1)]
    intact, *others = score(model, task.items(model.tokenizer), pruned, progress=progress)
    if intact.accuracy <= intact.chance:
        raise ValueError(
            f"the intact model answers {intact.accuracy:.2f} of this task, guessing {intact.chance:.2f}: no smaller "
            "model can be found that keeps it; take a task that the model does"
        )
    needed = intact.chance + keep * (intact.accuracy - intact.chance)
    return next((pruned[i] for i, each in enumerate(others) if each.accuracy < needed), pruned[-1])
