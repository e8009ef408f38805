"""One forward pass: some copies of a tree, each under its own intervention, resumed where they begin to differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nnsight
import torch
from torch import Tensor

from ..interventions.edits import Edit, Pass, perform, sites
from ..models.families import family
from .layout import Layout

if TYPE_CHECKING:
    from nnsight import TransformersModel

Reading = tuple[Tensor, Tensor]  # scores and greedy, each (copies, items, width)


@dataclass(frozen=True)
class Trunk:
    """What each layer gave in the intact pass over one tree: where a pass can resume."""

    outputs: list[Any]

    def after(self, layer: int, copies: int) -> Any:
        """The output of ``layer``, repeated for every copy; what the layer returned, tuple or tensor."""
        return _repeat(self.outputs[layer], copies)


def _repeat(value: Any, copies: int) -> Any:
    if isinstance(value, Tensor):
        return value.repeat(copies, *[1] * (value.dim() - 1))
    return type(value)(_repeat(v, copies) for v in value) if isinstance(value, (tuple, list)) else value


def inputs(model: TransformersModel, layout: Layout, copies: int) -> dict[str, Any]:
    """The model's keyword arguments for ``copies`` copies of the layout's rows."""
    rows = copies * len(layout.ids)
    arguments = {"input_ids": layout.ids.repeat(copies, 1), "logits_to_keep": layout.keep, "use_cache": False}
    if layout.mask is not None:
        # As numbers to add: eager attention would add a bool mask too, as ones.
        dtype = model._module.dtype
        hidden = torch.zeros(layout.mask.shape, dtype=dtype).masked_fill(~layout.mask, torch.finfo(dtype).min)
        arguments["attention_mask"] = hidden.expand(rows, -1, -1, -1)
        arguments["position_ids"] = layout.positions.expand(rows, -1)
    return arguments


@torch.no_grad()
def intact_pass(model: TransformersModel, layout: Layout) -> tuple[Reading, Trunk]:
    """What the intact model answers, and every layer's output to resume from."""
    layers = model.get(family(model).layers)
    with model.trace(**inputs(model, layout, 1)):
        outputs = nnsight.save([layer.output for layer in layers])
        logits = model.output.logits.save()
    return layout.read(logits, 1), Trunk(outputs)


@torch.no_grad()
def edited_pass(
    model: TransformersModel, layout: Layout, edits: Sequence[Sequence[Edit]], trunk: Trunk | None
) -> Reading:
    """What the model answers, copy number i under the edits ``edits[i]`` (see :meth:`Layout.read`).

    With a ``trunk``, the layers below the first edited one are skipped with their intact outputs.
    """
    copies, rows = len(edits), len(layout.ids)
    first = min((edit.layer for copy in edits for edit in copy), default=0) if trunk else 0
    resumed = trunk.after(first - 1, copies) if first else None
    layers = model.get(family(model).layers)
    places, arguments = sites(model, edits), inputs(model, layout, copies)
    # Every copy has the same mask and positions.
    mask, positions = (
        None if (v := arguments.get(k)) is None else v[:rows] for k in ("attention_mask", "position_ids")
    )
    with model.trace(**arguments):
        for layer in range(first):  # only the last one's output is read
            layers[layer].skip(resumed)
        perform(model, places, Pass(layout.stages, mask, positions, marks=layout.marks))
        logits = model.output.logits.save()
    return layout.read(logits, copies)
