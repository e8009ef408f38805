"""Mask the last row: the heads write nothing where the answer is read (paper A, section 5.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ..models.families import mixers
from .edits import TARGET, Edit, Pass, apply, check_kinds, where

if TYPE_CHECKING:
    from nnsight import TransformersModel


@dataclass(frozen=True)
class MaskLastRow:
    """The last row of every mixing matrix zero: at the target the heads of ``kinds`` add nothing.

    The target is the prompt's last token; the tokens after it, a candidate's or generated ones, are
    read like it and masked too. Every earlier token keeps its row, so what it gathered is still
    there: only the reading of it is gone.
    """

    kinds: tuple[str, ...] = ("attention",)

    def edits(self, model: TransformersModel) -> list[Edit]:
        """One edit for each output projection of these kinds.

        Raises:
            ValueError: a kind of head that the model does not have.
        """
        kinds = check_kinds(model, self.kinds)
        return [Edit(mixer.layer, mixer.path, _zero_last) for mixer in mixers(model) if mixer.kind in kinds]

    def describe(self) -> dict:
        return {"mask_last_row": list(self.kinds)}


def _zero_last(values: Tensor, here: Pass) -> Tensor:
    return where(here.since(TARGET), 0, values)


def mask_last_row(model: TransformersModel, kinds: Iterable[str] = ("attention",)) -> TransformersModel:
    """A view of ``model`` whose heads of ``kinds`` write nothing at the last token of the prompt and after it.

    Raises:
        ValueError: a kind of head that the model does not have.
    """
    return apply(model, MaskLastRow(tuple(kinds)))
