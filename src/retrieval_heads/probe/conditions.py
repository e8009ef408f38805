"""Some conditions, some measures: the table that says what an intervention costs, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pandas as pd

from ..evidence.intervals import bootstrap_mean
from ..heads import Head
from ..interventions.knockout import Knockout
from ..models.families import resolve
from ..tasks.items import Task
from ..tasks.running_text import RunningText
from .engine import score
from .language_loss import language_loss

if TYPE_CHECKING:
    from nnsight import TransformersModel

LOSS = "LM loss"
ADDED = "loss added"


def compare(
    model: TransformersModel,
    conditions: Mapping[str, Iterable[Head | str]],
    tasks: Mapping[str, Task],
    text: RunningText | None = None,
    *,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Knock out each condition's heads together; score every task, and the loss on running text.

    Returns:
        One row a condition and measure: ``condition``, ``measure``, ``value``, ``low``, ``high``,
        ``n``. Accuracies have Wilson intervals over items. The loss, in nats a token, comes twice:
        itself, with a bootstrap interval over windows, and as what a condition adds to the first
        one's, with the paired bootstrap interval of that difference. All intervals are 95 %.

    Raises:
        ValueError: a head that the model does not have.
    """
    knockouts = [Knockout(resolve(model, heads)) for heads in conditions.values()]
    rows = []
    for measure, task in tasks.items():
        answers = score(model, task.items(model.tokenizer), knockouts, progress=progress)
        rows += [(name, measure, *each.interval()) for name, each in zip(conditions, answers)]
    if text is not None:
        losses = language_loss(model, text.token_windows(model.tokenizer), knockouts, progress=progress)
        rows += [(name, LOSS, *bootstrap_mean(each)) for name, each in zip(conditions, losses)]
        rows += [(name, ADDED, *bootstrap_mean(each - losses[0])) for name, each in zip(conditions, losses)]
    return pd.DataFrame(rows, columns=["condition", "measure", "value", "low", "high", "n"])


def show(table: pd.DataFrame, digits: int = 2) -> pd.DataFrame:
    """The same as a table to read: conditions × measures, each cell ``value [low, high]``."""
    cells = [f"{r.value:.{digits}f} [{r.low:.{digits}f}, {r.high:.{digits}f}]" for r in table.itertuples()]
    wide = table.assign(cell=cells).pivot(index="condition", columns="measure", values="cell")
    return wide.loc[list(table.condition.unique()), list(table.measure.unique())].rename_axis(index=None, columns=None)
