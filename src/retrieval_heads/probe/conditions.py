"""Some conditions, some measures: the table that says what an intervention costs, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pandas as pd

from ..evidence.intervals import Interval, bootstrap_mean
from ..heads import Head
from ..interventions.edits import Intervention
from ..interventions.knockout import Knockout
from ..models.families import resolve
from ..tasks.items import Task
from ..tasks.running_text import RunningText
from .engine import score
from .language_loss import language_loss

if TYPE_CHECKING:
    from nnsight import TransformersModel

LOSS = "LM loss"
COLUMNS = ["condition", "measure", "value", "low", "high", "n", "change", "change_low", "change_high"]


def compare(
    model: TransformersModel,
    conditions: Mapping[str, Intervention | Iterable[Head | str]],
    tasks: Mapping[str, Task],
    text: RunningText | None = None,
    *,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Score every task, and the loss on running text, under each condition.

    Args:
        conditions: an intervention each, or heads to knock out together; the first is what the others are set against.

    Returns:
        One row a condition and measure: ``condition``, ``measure``; ``value``, ``low``, ``high``, an
        accuracy with its Wilson interval over items, or the loss in nats a token with a bootstrap
        interval over windows; ``n``; and ``change``, ``change_low``, ``change_high``, the difference
        from the first condition with its paired bootstrap interval. All intervals are 95 %.

    Raises:
        ValueError: a head that the model does not have.
    """
    interventions = [each if hasattr(each, "edits") else Knockout(resolve(model, each)) for each in conditions.values()]
    rows = []
    for measure, task in tasks.items():
        answers = score(model, task.items(model.tokenizer), interventions, progress=progress)
        right = [each.correct.astype(float) for each in answers]
        changes = [bootstrap_mean(each - right[0])[:3] for each in right]
        rows += [(name, measure, *each.interval(), *c) for name, each, c in zip(conditions, answers, changes)]
    if text is not None:
        losses = language_loss(model, text.token_windows(model.tokenizer), interventions, progress=progress)
        changes = [bootstrap_mean(each - losses[0])[:3] for each in losses]
        rows += [(name, LOSS, *bootstrap_mean(each), *c) for name, each, c in zip(conditions, losses, changes)]
    return pd.DataFrame(rows, columns=COLUMNS)


def estimate(table: pd.DataFrame, column: str = "value", **chosen: object) -> Interval:
    """One cell of the table of :func:`compare`, with its interval and sample size.

    In use::

        lost = -rh.estimate(costs, "change", condition="L18H6", measure="KV retrieval")

    Args:
        column: ``value`` or ``change``.
        chosen: what the row has in other columns.

    Raises:
        ValueError: no row is so, or more than one.
    """
    rows = table
    for name, value in chosen.items():
        rows = rows[rows[name] == value]
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} rows of the table have {chosen}; an estimate is one row")
    return Interval(*(float(rows[name].iloc[0]) for name in _columns(column)), int(rows.n.iloc[0]))


def _columns(column: str) -> tuple[str, str, str]:
    """The column's name and those of its interval."""
    return (column, "low", "high") if column == "value" else (column, f"{column}_low", f"{column}_high")


def show(table: pd.DataFrame, column: str = "value", digits: int = 2) -> pd.DataFrame:
    """The same as a table to read: conditions × measures, each cell ``value [low, high]``.

    Args:
        column: ``value`` or ``change``.
    """
    sign = "" if column == "value" else "+"
    cells = [
        f"{v:{sign}.{digits}f} [{a:{sign}.{digits}f}, {b:{sign}.{digits}f}]"
        for v, a, b in table[list(_columns(column))].to_numpy()
    ]
    wide = table.assign(cell=cells).pivot(index="condition", columns="measure", values="cell")
    return wide.loc[list(table.condition.unique()), list(table.measure.unique())].rename_axis(index=None, columns=None)
