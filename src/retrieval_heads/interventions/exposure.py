"""Exposure: what attention may read of the prompt, and when (paper B, Figs 1 and 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from torch import Tensor

from .edits import Edit, Pass, attentions

if TYPE_CHECKING:
    from nnsight import TransformersModel

Part = Literal["needle", "haystack"]


@dataclass(frozen=True)
class Omit:
    """No attention on a part of the prompt: every head's weights there are zero, in every attention layer.

    When, :class:`.During` says. The paper's settings name the prefill first, the generation second; for answers
    of one token, which the prompt's last token decides::

        During(Omit("needle"), "from the target")    # Keep-Omit
        During(Omit("needle"), "before the target")  # Omit-Keep
        Omit("needle")                               # Omit-Omit; Keep-Keep is the model as it is

    Attributes:
        part: ``"needle"``, or the ``"haystack"`` around it. The question and whatever comes first in every prompt
            are neither, and stay.
        renormalise: the other weights grow so that each row sums to what it did, as if the part were not there. The
            paper leaves them.
    """

    part: Part = "needle"
    renormalise: bool = False

    def __post_init__(self) -> None:
        if self.part not in get_args(Part):
            raise ValueError(f"part={self.part!r} is not one of {', '.join(map(repr, get_args(Part)))}")

    def edits(self, model: TransformersModel) -> list[Edit]:
        """One edit of each attention layer's weights.

        Raises:
            ValueError: the model has no attention, or not eager attention.
        """
        return [Edit(mixer.layer, mixer.module, self._omit, "weights") for mixer in attentions(model)]

    def _omit(self, weights: Tensor, here: Pass) -> Tensor:
        gone = here.marked(self.part, weights.shape[-1]).to(weights.device)
        left = weights.masked_fill(gone[:, None, None], 0)
        if not self.renormalise:
            return left
        sums = left.sum(-1, keepdim=True)
        return left * weights.sum(-1, keepdim=True) / sums.where(sums > 0, 1)

    def describe(self) -> dict:
        return {"omit": {"part": self.part, "renormalise": self.renormalise}}
