"""Knockout: a head's output is zero at every position (paper A, section 3.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..heads import Head, HeadSet
from ..models.families import mixers, resolve
from .edits import Edit, Pass, apply

if TYPE_CHECKING:
    from nnsight import TransformersModel


@dataclass(frozen=True)
class Knockout:
    """The heads of ``heads`` removed together: their columns of the output projection's input are zero.

    For a projection without bias this equals zeroing the matching columns of its weight. An
    empty set is the intact model.
    """

    heads: HeadSet

    def edits(self, model: TransformersModel) -> list[Edit]:
        """One edit for each output projection that a head of the set feeds.

        Raises:
            ValueError: a head that the model does not have.
        """
        heads = resolve(model, self.heads)
        edits = []
        for mixer in mixers(model):
            here = [mixer.columns(h) for h in heads if (h.layer, h.kind) == (mixer.layer, mixer.kind)]
            if here:
                edits.append(Edit(mixer.layer, mixer.path, partial(_zero_columns, slices=here)))
        return edits

    def describe(self) -> dict:
        return {"knockout": [str(head) for head in self.heads]}


def _zero_columns(values: Tensor, here: Pass, slices: list[slice]) -> Tensor:
    """``values`` (…, columns) with the slices' columns zero; NaN and infinity become zero too."""
    keep = torch.ones(values.shape[-1], dtype=torch.bool, device=values.device)
    for columns in slices:
        keep[columns] = False
    return torch.where(keep, values, 0)


def knockout(model: TransformersModel, heads: Iterable[Head | str]) -> TransformersModel:
    """A view of ``model`` in which ``heads`` are knocked out, at every position and generation step.

    In use::

        without = knockout(model, ["L16H0", "L18H6"])
        with without.trace("cat:7\\ndog:3\\ncat:"):
            logits = without.lm_head.output.save()

    Raises:
        ValueError: a head that the model does not have.
    """
    return apply(model, Knockout(resolve(model, heads)))
