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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..heads import HeadSet
from ..interventions.edits import Edit, Intervention, unapplied
from ..interventions.knockout import Knockout
from ..models.families import packs
from ..models.loading import describe
from ..progress import bar
from ..tasks.items import Item
from .answers import Answers
from .batching import copies_per_pass, halving
from .encoding import Encoded, encode
from .layout import Layout, lay_out
from .passes import Reading, Trunk, edited_pass, intact_pass
from .processes import everyones, is_first, mine, the_firsts, wait
from .store import Store, digest
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
    resume: Path | None = None,
    about: dict | None = None,
    progress: bool | None = None,
) -> list[Answers]:
    """Answer scores of every item under each intervention, in the order of ``interventions``.

    Under ``accelerate launch`` the processes share the work, and each returns all answers.

    Args:
        copies: interventions a pass, at most; None finds what fits the memory.
        resume: a folder for finished passes: the same call with the same folder goes on from them.
        about: what the scores depend on besides items and interventions, for the record in that
            folder, as JSON data; None describes the model, which reads all its weights.
        progress: show a bar; None shows it on a terminal only.

    Raises:
        ValueError: no items, candidates that the tokenizer cannot tell apart, an architecture
            that is not in the table, a head that the model does not have, or ``resume`` with a
            view, whose edits no record can hold.
    """
    if not items:
        raise ValueError("there are no items to score; make the task larger")
    run = Run(model, items, interventions, copies)
    store = None if resume is None else _open(resume, run.key(items, interventions, about), run.copies)
    units = list(enumerate(run.plan(store.plan["copies"] if store else run.copies)))
    found = []
    for number, unit in bar(mine(units), progress=progress if is_first() else False, desc="scoring", unit="pass"):
        arrays = store.get(number) if store else None
        if arrays is None:
            arrays = run.compute(unit)
            if store:
                store.put(number, *arrays)
        found.append((number, *arrays))
    for number, scores, greedy in everyones(found):
        run.keep(units[number][1], scores, greedy)
    return run.answers()


def _open(folder: Path, key: dict, copies: list[int]) -> Store:
    """The store of this run; the first process makes it, so that no other finds it half made."""
    if not is_first():
        wait()
    store = Store(folder, key, {"copies": copies})
    if is_first():
        wait()
    return store


def _check_length(model: TransformersModel, encoded: Sequence[Encoded]) -> None:
    longest = max(len(item.prompt) + max(map(len, item.candidates)) for item in encoded)
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and longest > limit:
        raise ValueError(f"a prompt with its answer has {longest} tokens, the model reads {limit}; use shorter prompts")


class Run:
    """One call of :func:`score`: its trees, the passes that it takes, and the scores so far."""

    def __init__(
        self,
        model: TransformersModel,
        items: Sequence[Item],
        interventions: Sequence[Intervention],
        copies: int | None = None,
    ) -> None:
        # A view made by `apply` is the model below it, with one more intervention in every condition.
        self.model, applied = unapplied(model)
        self.encoded = encode(items, model.tokenizer)
        _check_length(model, self.encoded)
        self.trees = grow(self.encoded, [item.context for item in items])
        self.packed = [packs(model, tree.longest()) for tree in self.trees]
        self.edits = [
            [edit for each in (*applied, intervention) for edit in each.edits(self.model)]
            for intervention in interventions
        ]
        self.is_view = bool(model._edits)
        # Any other edits may be at modules that a resumed pass would skip.
        self.resumes = not self.model._edits
        # The memory that is free differs between processes; the units may not.
        found = [copies or copies_per_pass(model, *each) for each in zip(self.trees, self.packed)]
        self.copies = the_firsts(found)
        width = max(len(item.candidates) for item in self.encoded)
        self.scores = np.full((len(interventions), len(items), width), np.nan)
        self.greedy = np.zeros(self.scores.shape, dtype=bool)
        self._trunk_of: int | None = None

    def key(self, items: Sequence[Item], interventions: Sequence[Intervention], about: dict | None) -> dict:
        """What the scores depend on, as JSON data."""
        if self.is_view:
            raise ValueError("resume needs the model itself, not a view of it: give the view's edits as interventions")
        described = [intervention.describe() for intervention in interventions]
        record = describe(self.model) if about is None else about
        return {**record, "items": digest([asdict(item) for item in items]), "interventions": digest(described)}

    def plan(self, copies: Sequence[int]) -> Iterator[Unit]:
        """The units: tree by tree, so that one tree's trunk is in memory at a time.

        Args:
            copies: interventions a pass, at most, for each tree.
        """
        by_layer: dict[int, list[int]] = {}
        for index, edits in enumerate(self.edits):
            layer = min((edit.layer for edit in edits), default=-1)  # -1: nothing to change, the intact pass itself
            by_layer.setdefault(layer, []).append(index)
        for number, size in enumerate(copies):
            for layer, indices in sorted(by_layer.items()):
                for start in range(0, len(indices), size):
                    yield Unit(number, tuple(indices[start : start + size]), layer)

    def keep(self, unit: Unit, scores: np.ndarray, greedy: np.ndarray) -> None:
        """Put a unit's arrays, each (interventions, items of the tree, candidates), in their place."""
        here = np.ix_(unit.interventions, self.trees[unit.tree].items, range(scores.shape[-1]))
        self.scores[here], self.greedy[here] = scores, greedy

    def compute(self, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
        """The scores and greedy flags of one unit, each (interventions, items of the tree, candidates)."""
        if self._trunk_of != unit.tree:
            self._layout: Layout = lay_out(self.trees[unit.tree], self.packed[unit.tree])
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
