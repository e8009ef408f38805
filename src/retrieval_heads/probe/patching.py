"""Activation patching: how much of an answer each head brings back, alone (paper A, section 3.6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from ..heads import Head, HeadSet
from ..interventions.patch import Patch, head_outputs
from ..models.families import resolve
from ..progress import bar
from ..tasks.items import Item
from .engine import INTACT, score

if TYPE_CHECKING:
    from nnsight import TransformersModel


def patching(
    model: TransformersModel,
    pairs: Sequence[tuple[Item, Item]],
    heads: Iterable[Head | str | Iterable[Head | str]],
    *,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Put each head's output in a clean run into the run on a counterfactual, and see what comes back of the answer.

    A knockout asks what is lost without a head; patching asks what the head alone brings. Of the log-odds of the clean
    prompt's answer against the counterfactual's, ``restored`` is the part of the way from the counterfactual run to the
    clean one: 0 where the head makes no difference, 1 where it decides alone. It may lie outside.

    In use::

        pairs = [(item, task.counterfactual(item)) for item in task.items(model.tokenizer)]
        table = patching(model, pairs, ["L16H0", "L18H6", ["L16H0", "L18H6"]])

    Args:
        pairs: a clean item and its counterfactual: the same candidates, equally many tokens, another answer.
        heads: a head, or some to be patched together, for each row of the result.

    Returns:
        One row a pair and entry of ``heads``: ``item`` (the pair's place, from 0), ``heads`` (their names) and
        ``restored``; and for each pair ``clean`` and ``counterfactual``, the log-odds without a patch, in nats.

    Raises:
        ValueError: no pairs, a pair that does not fit together, or a head that the model does not have.
    """
    if not pairs:
        raise ValueError("there is nothing to patch between; give at least one pair of items")
    sets = [resolve(model, [each] if isinstance(each, (Head, str)) else each) for each in heads]
    rows = []
    for number, (clean, other) in enumerate(bar(pairs, progress=progress, desc="patching", unit="pair")):
        if clean.candidates != other.candidates or clean.answer == other.answer:
            raise ValueError(f"pair {number}: a counterfactual has the clean item's candidates and another answer")
        (reference,) = score(model, [clean], progress=False)
        source = head_outputs(model, clean.prompt)
        patches = [Patch(HeadSet(each), source) for each in sets]
        answers = score(model, [other], [INTACT, *patches], progress=False)
        odds = [float(each.scores[0, clean.answer] - each.scores[0, other.answer]) for each in (reference, *answers)]
        high, low, *patched = odds
        for each, found in zip(sets, patched):
            rows.append((number, " ".join(map(str, each)), (found - low) / (high - low), high, low))
    return pd.DataFrame(rows, columns=["item", "heads", "restored", "clean", "counterfactual"])
