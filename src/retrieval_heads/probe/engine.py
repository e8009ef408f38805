"""The engine: a model, some interventions and some items in; exact answer scores out.

Everything that knocks out, sparsifies or masks many times goes through here. It is fast by doing
less, never by approximating (a test compares it with the naive loop):

- what prompts share is computed once (:mod:`.tree`);
- a pass starts at the first layer that its intervention touches, from the intact outputs of the
  layer below (:mod:`.passes`);
- interventions that start at the same layer are rows of one pass;
- the final norm and the vocabulary projection run only where a score is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from tqdm import tqdm

from ..heads import HeadSet
from ..interventions.edits import Edit, Intervention
from ..interventions.knockout import Knockout
from ..models.families import family
from ..tasks.items import Item
from .answers import Answers
from .batching import copies_per_pass, halving
from .encoding import encode
from .layout import Layout, lay_out
from .passes import Reading, Trunk, edited_pass, intact_pass
from .tree import grow

if TYPE_CHECKING:
    from nnsight import TransformersModel

INTACT = Knockout(HeadSet())


@dataclass(frozen=True)
class Unit:
    """The work of one pass: one tree under some interventions that begin at one layer."""

    tree: int
    interventions: tuple[int, ...]
    layer: int


def score(
    model: TransformersModel,
    items: Sequence[Item],
    interventions: Sequence[Intervention] = (INTACT,),
    *,
    copies: int | None = None,
    progress: bool | None = None,
) -> list[Answers]:
    """Answer scores of every item under each intervention, in the order of ``interventions``.

    Args:
        copies: interventions a pass, at most; None finds what fits the memory.
        progress: show a bar; None shows it on a terminal only.

    Raises:
        ValueError: no items, candidates that the tokenizer cannot tell apart, an architecture
            that is not in the table, or a head that the model does not have.
    """
    if not items:
        raise ValueError("there are no items to score; make the task larger")
    run = Run(model, items, interventions, copies)
    for unit in tqdm(run.units, desc="scoring", unit="pass", disable=None if progress is None else not progress):
        run.do(unit)
    return run.answers()


class Run:
    """One call of :func:`score`: its trees, its units, and the scores so far."""

    def __init__(
        self,
        model: TransformersModel,
        items: Sequence[Item],
        interventions: Sequence[Intervention],
        copies: int | None = None,
    ) -> None:
        self.model = model
        self.packed = family(model).packs
        self.encoded = encode(items, model.tokenizer)
        self.trees = grow(self.encoded, [item.context for item in items])
        self.edits = [intervention.edits(model) for intervention in interventions]
        # A view made by `apply` holds edits of its own at modules that a resumed pass would skip.
        self.resumes = not model._edits
        self.copies = copies
        width = max(len(item.candidates) for item in self.encoded)
        self.scores = np.full((len(interventions), len(items), width), np.nan)
        self.greedy = np.zeros(self.scores.shape, dtype=bool)
        self.units = list(self._plan())
        self._trunk_of: int | None = None

    def _plan(self) -> Iterator[Unit]:
        """The units: tree by tree, so that one tree's trunk is in memory at a time."""
        by_layer: dict[int, list[int]] = {}
        for index, edits in enumerate(self.edits):
            layer = edits[0].layer if edits else -1  # -1: nothing to change, the intact pass itself
            by_layer.setdefault(layer, []).append(index)
        for number, tree in enumerate(self.trees):
            size = self.copies or copies_per_pass(self.model, tree, self.packed)
            for layer, indices in sorted(by_layer.items()):
                for start in range(0, len(indices), size):
                    yield Unit(number, tuple(indices[start : start + size]), layer)

    def do(self, unit: Unit) -> None:
        """Run one unit and keep what it found."""
        self.keep(unit, *self.compute(unit))

    def keep(self, unit: Unit, scores: np.ndarray, greedy: np.ndarray) -> None:
        """Put a unit's arrays, each (interventions, items of the tree, candidates), in their place."""
        here = np.ix_(unit.interventions, self.trees[unit.tree].items, range(scores.shape[-1]))
        self.scores[here], self.greedy[here] = scores, greedy

    def compute(self, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
        """The scores and greedy flags of one unit, each (interventions, items of the tree, candidates)."""
        if self._trunk_of != unit.tree:
            self._layout: Layout = lay_out(self.trees[unit.tree], self.packed, self.model.device)
            self._intact, self._trunk = intact_pass(self.model, self._layout)
            self._trunk_of = unit.tree
        if unit.layer < 0:
            parts = [self._intact] * len(unit.interventions)
        else:
            parts = list(halving(self._pass, [self.edits[index] for index in unit.interventions]))
        scores, greedy = (torch.cat(arrays).cpu().numpy() for arrays in zip(*parts))
        return scores, greedy

    def _pass(self, edits: Sequence[Sequence[Edit]]) -> Reading:
        trunk: Trunk | None = self._trunk if self.resumes else None
        return edited_pass(self.model, self._layout, edits, trunk)

    def answers(self) -> list[Answers]:
        answer = np.array([item.answer for item in self.encoded])
        return [Answers(scores, greedy, answer) for scores, greedy in zip(self.scores, self.greedy)]
