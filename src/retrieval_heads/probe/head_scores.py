"""The table that a probe makes: what each head's removal does, and the record of how it was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..evidence.intervals import bootstrap_mean, wilson
from ..files import write_whole
from ..heads import Head, HeadSet
from .answers import Answers

COLUMNS = (
    "layer",
    "head",
    "kind",
    "n",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "drop",
    "drop_low",
    "drop_high",
    "logprob_change",
    "generated",
    "generated_low",
    "generated_high",
    "generated_drop",
    "generated_drop_low",
    "generated_drop_high",
)


@dataclass(frozen=True)
class HeadScores:
    """One row a head, the most damaging head first.

    Attributes:
        table: columns ``layer``, ``head``, ``kind``; ``n`` samples; ``accuracy`` without the head,
            with its 95 % Wilson interval; ``drop``, the intact accuracy on the same samples minus
            it, with its 95 % paired bootstrap interval; ``logprob_change``, the mean change of the
            right answer's log-probability, in nats; ``generated`` and ``generated_drop``, the same as
            ``accuracy`` and ``drop`` for greedy generation (:attr:`.Answers.generated`).
        header: versions, model, task with its seed, intact accuracy: JSON data.
    """

    table: pd.DataFrame
    header: dict

    @classmethod
    def compare(cls, intact: Answers, without: Iterable[tuple[Head, Answers]], header: dict) -> HeadScores:
        """Compare each head's removal with the intact model on the same items.

        ``intact`` may hold more items than a head's answers: the first ones are then used.
        """
        rows = []
        for head, answers in without:
            same = intact.take(slice(len(answers)))
            change = float((answers.answer_logprob - same.answer_logprob).mean())
            chosen = _rate_and_drop(answers.correct, same.correct)
            written = _rate_and_drop(answers.generated, same.generated)
            rows.append((head.layer, head.index, head.kind, len(answers), *chosen, change, *written))
        table = pd.DataFrame(rows, columns=list(COLUMNS))
        # A head that a race left behind ranks after those that it kept, whatever its few samples say.
        order = {"n": False, "drop": False, "logprob_change": True, "layer": True, "head": True}
        table = table.sort_values(list(order), ascending=list(order.values()), ignore_index=True)
        rates = {"intact": intact.correct, "intact_generated": intact.generated}
        intervals = {name: wilson(int(right.sum()), len(right))._asdict() for name, right in rates.items()}
        return cls(table, {**header, **intervals, "chance": intact.chance})

    def top(self, count: int) -> HeadSet:
        """The ``count`` most damaging heads.

        Raises:
            ValueError: more heads than the table has.
        """
        if not 0 <= count <= len(self.table):
            raise ValueError(f"count={count} is not between 0 and the table's {len(self.table)} heads")
        return HeadSet(self.ranking[:count])

    @property
    def ranking(self) -> list[Head]:
        """The heads, the most damaging first."""
        columns = self.table[["layer", "head", "kind"]].itertuples(index=False)
        return [Head(int(layer), int(head), kind) for layer, head, kind in columns]

    def grid(self, column: str = "drop", kind: str | None = None) -> pd.DataFrame:
        """A column as layers × heads, for a map; NaN where a layer has no such head."""
        table = self.table if kind is None else self.table[self.table.kind == kind]
        return table.pivot(index="layer", columns="head", values=column)

    def save(self, path: str | Path) -> Path:
        """Write a CSV whose first line is ``# `` and the header as JSON.

        Read it back with :meth:`load`, or anywhere with ``pandas.read_csv(path, comment="#")``.

        Raises:
            ValueError: the name does not end in ``.csv``.
        """
        path = Path(path)
        if path.suffix != ".csv":
            raise ValueError(f"{path.name!r} must end in .csv: head scores are saved as CSV with a JSON header")
        text = f"# {json.dumps(self.header, sort_keys=True)}\n{self.table.to_csv(index=False, float_format='%.6g')}"
        return write_whole(path, text.encode())

    @classmethod
    def load(cls, path: str | Path) -> HeadScores:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: the file is not a table of head scores.
        """
        with open(path, encoding="utf-8") as file:
            first = file.readline()
        try:
            header = json.loads(first.removeprefix("# "))
            table = pd.read_csv(path, comment="#")
        except ValueError as error:
            raise ValueError(f"{path} is not a table of head scores: its first line is {first[:40]!r}") from error
        if tuple(table.columns) != COLUMNS:
            raise ValueError(f"{path} has the columns {list(table.columns)}, head scores have {list(COLUMNS)}")
        return cls(table.astype(dict.fromkeys(COLUMNS[COLUMNS.index("n") + 1 :], float)), header)


def _rate_and_drop(without: np.ndarray, intact: np.ndarray) -> tuple[float, ...]:
    """The rate of right answers without a head, and what it lost: each a value, low and high."""
    rate = wilson(int(without.sum()), len(without))
    drop = bootstrap_mean(intact.astype(float) - without)
    return (*rate[:3], *drop[:3])
