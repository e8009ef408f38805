"""What an intervention is: changes to the inputs of named modules, made by nnsight."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from nnsight import TransformersModel

# An edit waits for the next step of a generation; nnsight warns, at each plain forward pass, that none came.
warnings.filterwarnings("ignore", message=r"'.*proj\.input\.i\d+' was never reached: the loop asked for a step")


@dataclass(frozen=True)
class Edit:
    """A change to one module's input, ``(rows, tokens, columns)`` → the same shape."""

    layer: int
    path: str
    change: Callable[[Tensor], Tensor]


class Intervention(Protocol):
    """A description of what to change; it holds no model and can be written to a file."""

    def edits(self, model: TransformersModel) -> list[Edit]:
        """The changes for this model, in the order in which a forward pass reaches them."""

    def describe(self) -> dict:
        """The intervention as JSON data."""


def apply(model: TransformersModel, intervention: Intervention) -> TransformersModel:
    """An edited view of ``model``: every trace and every ``generate`` of it runs under the intervention.

    The weights are shared and ``model`` itself stays as it was. Views compose: ``apply`` an
    intervention to a view, and both hold.
    """
    edits = intervention.edits(model)
    if not edits:
        return model
    with model.edit() as (tracer, view):
        for _ in tracer.iter[:]:  # every step of a generation, not only the first
            for edit in edits:
                module = view.get(edit.path)
                module.input = edit.change(module.input)
    return view
