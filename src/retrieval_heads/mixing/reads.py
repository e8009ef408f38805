"""What heads read where retrieval happens: at the summaries of segments, and at the target (paper A, sections 4, 5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from ..heads import Head
from ..models.families import resolve
from ..tasks.items import Item
from .matrices import mixings
from .measures import entropy, largest_on, mass, mass_around, sink_mass
from .roles import asked_line, dictionary_lines

if TYPE_CHECKING:
    from nnsight import TransformersModel

ROWS = ("summary", "target")
MEASURES = ("segment", "itself", "leaked", "sink", "largest", "entropy")


def reads(model: TransformersModel, items: Sequence[Item], heads: Iterable[Head | str]) -> pd.DataFrame:
    """How each head's rows are shared out at the summaries and at the target, prompt by prompt.

    A segment is a line of the dictionary and its summary the newline that ends it; a prompt's numbers for
    the row ``summary`` are means over its lines. The target is the prompt's last token. Of a row's
    absolute weights,

    - ``segment`` is on the segment that the row is about: of a summary the rest of its own line, of the
      target the line with the right answer;
    - ``itself`` is on the token itself, and of the target on its whole line, the question;
    - ``sink`` is on the first token;
    - ``leaked`` is on every other token: 1 is what the four make together.

    ``largest`` is how often the largest weight is on that segment. ``entropy`` (nats) is of the weights on
    ``segment`` and ``leaked``, what is read of the text: it is 0 where that is one token, and neither a
    token's weight on itself nor a sink can make it small.

    Args:
        items: KV-retrieval items in the continuation template.

    Returns:
        One row an item, head and row: ``item`` (its place, from 0), ``head``, ``row`` and the measures.

    Raises:
        ValueError: no items, a head that the model does not have, or an item whose context is not lines
            that end in newline tokens.
    """
    found, tables = resolve(model, heads), []
    for number, (matrices, lines, ends, asked) in enumerate(_prompts(model, items, found)):
        itself = np.eye(len(lines), dtype=bool)
        itself[-1] = lines == lines[-1]
        segment = (lines[:, None] == lines) & ~itself
        segment[-1] = lines == asked
        leaked = ~segment & ~itself
        leaked[:, 0] = False
        measured = [
            *(mass(matrices, on) for on in (segment, itself, leaked)),
            sink_mass(matrices),
            largest_on(matrices, segment),
            entropy(np.where(segment | leaked, matrices, 0)),
        ]
        at = {"summary": lambda each, ends=ends: each[:, ends].mean(-1), "target": lambda each: each[:, -1]}
        for row in ROWS:
            values = {name: at[row](each).astype(float) for name, each in zip(MEASURES, measured)}
            tables.append(pd.DataFrame({"item": number, "head": list(map(str, found)), "row": row, **values}))
    return pd.concat(tables, ignore_index=True)


def profiles(
    model: TransformersModel, items: Sequence[Item], heads: Iterable[Head | str], reach: int = 8
) -> pd.DataFrame:
    """How each head's weight lies around a summary: the row ``summary`` around itself, ``target`` around the right one.

    Args:
        items: KV-retrieval items in the continuation template.
        reach: how many tokens on either side of the summary, the newline that ends a line.

    Returns:
        One row a head, row and place: ``head``, ``row`` (as in :func:`reads`), ``place`` (``-reach`` to ``reach``,
        0 is the summary; up to 0 where the row is the summary's own) and ``share``, of the row's absolute
        weights, the mean over the items.

    Raises:
        ValueError: as :func:`reads`, or a negative reach.
    """
    found, sums = resolve(model, heads), dict.fromkeys(ROWS, 0)
    for matrices, lines, ends, asked in _prompts(model, items, found):
        (right,) = (end for end in ends if lines[end] == asked)
        sums["summary"] += mass_around(matrices, np.arange(len(lines)), reach)[:, ends].mean(1)[:, : reach + 1]
        sums["target"] += mass_around(matrices, right, reach)[:, -1]
    rows = [
        (str(head), row, place - reach, share / len(items))
        for row in ROWS
        for head, shares in zip(found, sums[row])
        for place, share in enumerate(shares)
    ]
    return pd.DataFrame(rows, columns=["head", "row", "place", "share"])


def _prompts(
    model: TransformersModel, items: Sequence[Item], heads: Iterable[Head]
) -> Iterator[tuple[np.ndarray, np.ndarray, list[int], int]]:
    """Of each item the heads' matrices (heads, tokens, tokens), its tokens' lines, its summaries and the asked line."""
    if not items:
        raise ValueError("what heads read is measured on prompts; give at least one item")
    for item in items:
        lines, ends = dictionary_lines(model.tokenizer, item)
        stack = torch.stack([mixing.matrix for mixing in mixings(model, item.prompt, heads).values()])
        yield stack.numpy(), lines, ends, asked_line(item)
