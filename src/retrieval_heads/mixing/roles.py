"""Gather and Aggregate: what a retrieval head does in a KV-retrieval prompt (paper A, section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..heads import Head
from ..models.families import resolve
from ..tasks.items import Item
from .matrices import mixings
from .measures import mass

if TYPE_CHECKING:
    from nnsight import TransformersModel


def roles(model: TransformersModel, items: Sequence[Item], heads: Iterable[Head | str]) -> pd.DataFrame:
    """How strongly each head gathers and aggregates, and the role that this gives it.

    A Gather head condenses a segment into its last token: ``gather`` is the mass that the row of the
    newline ending a line of the dictionary has on the rest of that line, over all lines. An
    Aggregate head lets the target read the right summary: ``aggregate`` is the mass that the row of
    the prompt's last token has on the line of the right answer. Rows are those of the mixing matrix,
    of a head of any kind; mass is attention, or what :func:`~.measures.mass` makes of other weights.
    The role is the larger of the two, if it is at least one half.

    Args:
        items: KV-retrieval items in the continuation template; the more, the steadier the means.

    Returns:
        One row a head: ``head``, ``gather``, ``aggregate`` (means over the items, 0 to 1), ``role``.

    Raises:
        ValueError: no items, or an item whose context is not lines that end in newline tokens.
    """
    if not items:
        raise ValueError("roles are measured on prompts; give at least one item")
    found = resolve(model, heads)
    sums = {head: np.zeros(2) for head in found}
    for item in items:
        lines, ends = dictionary_lines(model.tokenizer, item)
        asked = lines == asked_line(item)
        rest_of_line = (lines[:, None] == lines) & ~np.eye(len(lines), dtype=bool)
        for head, mixing in mixings(model, item.prompt, found).items():
            gather = mass(mixing.matrix, rest_of_line)[ends].mean()
            sums[head] += gather, mass(mixing.matrix, asked)[-1]
    rows = [(str(head), *(total / len(items))) for head, total in sums.items()]
    table = pd.DataFrame(rows, columns=["head", "gather", "aggregate"])
    larger = np.where(table["gather"] > table["aggregate"], "Gather", "Aggregate")
    table["role"] = np.where(table[["gather", "aggregate"]].max(axis=1) >= 0.5, larger, "neither")
    return table


def dictionary_lines(tokenizer, item: Item) -> tuple[np.ndarray, list[int]]:
    """Each token's line of the prompt, and the tokens that end the dictionary's lines (its title's aside).

    Raises:
        ValueError: a line does not end in a token of its own.
    """
    encoded = tokenizer(item.prompt, return_offsets_mapping=True)
    starts = [start for start, _ in encoded.offset_mapping]
    lines = np.array([item.prompt.count("\n", 0, start) for start in starts])
    ends = [i for i, start in enumerate(starts) if lines[i] > 0 and item.prompt[start] == "\n"]
    if len(ends) != item.context.count("\n") - 1:
        raise ValueError("roles need a dictionary whose lines end in newline tokens; this tokenizer merges them")
    return lines, ends


def asked_line(item: Item) -> int:
    """The line of the context that begins like the question and holds its answer.

    Raises:
        ValueError: there is none.
    """
    pair = item.question + item.candidates[item.answer]
    for number, line in enumerate(item.context.split("\n")):
        if line == pair:
            return number
    raise ValueError(f"no line of the dictionary is {pair!r}; roles need the continuation template")
