"""When an intervention holds: while the prompt is read, while the answer is written, or both (paper B, Fig. 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from torch import Tensor

from .edits import GENERATED, TARGET, Change, Edit, Intervention, Pass, where

if TYPE_CHECKING:
    from nnsight import TransformersModel

When = Literal["prefill", "generation", "both", "before the target", "from the target"]
TIMES = get_args(When)


@dataclass(frozen=True)
class During:
    """``intervention``, but only at the tokens of the prompt or only at those after it.

    In ``generate`` these are the first pass and the later ones. In answer scoring a candidate's tokens
    are the generation; its first token is decided by the prompt's last, the target, which is part of the
    prefill. So an answer of one token has no generation. ``"before the target"`` and ``"from the target"``
    part the two where the answer begins to be decided instead.
    """

    intervention: Intervention
    when: When

    def __post_init__(self) -> None:
        if self.when not in TIMES:
            raise ValueError(f"when={self.when!r} is not one of {', '.join(map(repr, TIMES))}")

    def edits(self, model: TransformersModel) -> list[Edit]:
        edits = self.intervention.edits(model)
        if self.when == "both":
            return edits
        return [replace(edit, change=partial(_sometimes, change=edit.change, when=self.when)) for edit in edits]

    def describe(self) -> dict:
        return {"during": self.when, "intervention": self.intervention.describe()}


def _sometimes(values: Tensor, here: Pass, change: Change, when: When) -> Tensor:
    later = here.since(TARGET if "target" in when else GENERATED)
    return where(later if when in ("generation", "from the target") else ~later, change(values, here), values)


def during(intervention: Intervention, when: When) -> During:
    """``intervention`` for the prefill only, the generation only, or both; or for what comes before or from the target.

    In use::

        view = apply(model, during(Knockout(heads), "generation"))
        view.generate("cat:7\\ndog:3\\ncat:", max_new_tokens=2)

    Raises:
        ValueError: ``when`` is none of these.
    """
    return During(intervention, when)
