"""Swap: a layer of the student mixes tokens with the teacher's heads (paper A, section 5.4 and Fig. 7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from ..heads import Head, HeadSet
from ..models.families import Mixer, mixers, packs, resolve
from ..models.loading import fingerprint, model_name
from .edits import GENERATED, Edit, Pass, apply, check_layers, layer_path
from .knockout import Knockout

if TYPE_CHECKING:
    from nnsight import TransformersModel


@dataclass(frozen=True)
class Swap:
    """In one layer, heads of the teacher in the place of heads of the student.

    The teacher's heads read the student's residual stream through the teacher's own input norm, to
    whose scale their weights were fitted (a distilled student starts from a copy of that norm), and add
    to it through their own columns of the teacher's output projection. No weight is copied.

    In ``generate`` the teacher reads all of the layer's past anew at each step: exact without a cache
    of its own. Beam search, which reorders the rows between steps, is not for it.

    Attributes:
        teacher: a model of the same width; its layer ``layer`` has one mixer.
        layer: of the teacher and of the student alike.
        heads: the teacher's heads that come in; None is its whole mixer, with the output projection's bias.
        student_heads: the student's heads that give way; None is all its heads of the layer, and the bias.
    """

    teacher: TransformersModel = field(repr=False)
    layer: int
    heads: HeadSet | None = None
    student_heads: HeadSet | None = None

    def edits(self, model: TransformersModel) -> list[Edit]:
        """The student's heads out, the teacher's in.

        Raises:
            ValueError: teacher and student of different widths, or the same model; a layer that either does not
                have, or where the teacher has two mixers; a head that does not exist or is of another layer.
        """
        widths = [each.config.hidden_size for each in (self.teacher, model)]
        if widths[0] != widths[1]:
            raise ValueError(f"the teacher's residual stream has {widths[0]} columns, the student's {widths[1]}")
        if self.teacher._module is model._module:
            raise ValueError("teacher and student are the same model; load it twice to swap within it")
        mine, its = (self._mixers(each) for each in (model, self.teacher))
        if len(its) > 1:
            raise ValueError(f"layer {self.layer} of the teacher has {len(its)} mixers; a swap takes a layer with one")
        enter = None if self.heads is None else self._heads(self.teacher, self.heads, "teacher")
        add = Edit(
            self.layer, mine[-1].path, _Teacher(self.teacher, its[0], enter, self.student_heads is None), "output"
        )
        if self.student_heads is None:
            return [add]
        return [*Knockout(self._heads(model, self.student_heads, "student")).edits(model), add]

    def _mixers(self, model: TransformersModel) -> list[Mixer]:
        check_layers(model, [self.layer])
        return [mixer for mixer in mixers(model) if mixer.layer == self.layer]

    def _heads(self, model: TransformersModel, heads: HeadSet, whose: str) -> HeadSet:
        for head in (found := resolve(model, heads)):
            if head.layer != self.layer:
                raise ValueError(f"the {whose}'s {head} is not in layer {self.layer}, the one that is swapped")
        return found

    def describe(self) -> dict:
        layer = self.teacher.get(layer_path(self.teacher, self.layer))
        heads, gone = (None if each is None else [str(h) for h in each] for each in (self.heads, self.student_heads))
        weights = fingerprint(layer)  # of all that the swap can depend on, not of the whole teacher
        teacher = {"name": model_name(self.teacher), "layer": self.layer, "fingerprint": weights}
        return {"swap": {"teacher": teacher, "heads": heads, "student_heads": gone}}


class _Teacher:
    """The change that puts the teacher's heads in; it remembers what the layer read of a generation so far."""

    def __init__(self, teacher: TransformersModel, mixer: Mixer, heads: HeadSet | None, alone: bool) -> None:
        self.teacher, self.mixer, self.alone = teacher, mixer, alone
        self.columns = None
        if heads is not None:
            every = torch.arange(mixer.heads * mixer.width)
            self.columns = torch.cat([every[:0], *(every[mixer.columns(head)] for head in heads)])
        self.read = Pass(torch.empty(0))

    def __call__(self, values: Tensor, here: Pass) -> Tensor:
        fresh = here.residual.shape[1]
        self.read = _go_on(self.read, here) if (here.stage == GENERATED).all() else here
        added = self._add(self.read)[:, -fresh:].to(values)
        return added if self.alone else values + added

    def _add(self, here: Pass) -> Tensor:
        """(rows, tokens, hidden) what the teacher's heads add to the residual stream."""
        teacher, residual = self.teacher, here.residual
        if here.mask is not None and here.mask.ndim == 4 and not packs(teacher, 1 + int(here.positions.max())):
            raise ValueError("the student reads many branches in one pass, under a mask that this teacher cannot obey")
        residual = residual.to(teacher.device, teacher._module.dtype)
        ids = torch.zeros(residual.shape[:2], dtype=torch.long)
        given = {"attention_mask": here.mask, "position_ids": here.positions}
        given = {name: value for name, value in given.items() if value is not None}
        with teacher.trace(input_ids=ids, use_cache=False, **given) as tracer:
            for layer in range(self.mixer.layer):
                teacher.get(layer_path(teacher, layer)).skip(residual)
            teacher.get(layer_path(teacher, self.mixer.layer)).input = residual
            read = teacher.get(self.mixer.path).input.save()
            tracer.stop()
        projection = teacher._module.get_submodule(self.mixer.path)
        if self.columns is None:
            return linear(read, projection.weight, projection.bias)
        columns = self.columns.to(read.device)
        return linear(read[..., columns], projection.weight[:, columns])


def _go_on(before: Pass, step: Pass) -> Pass:
    """The pass over all tokens so far, from the one over those before ``step`` and ``step``."""
    mask = step.mask
    if mask is None and before.mask is not None:  # recurrent models are given the mask of the prompt only
        mask = pad(before.mask, (0, step.residual.shape[1]), value=1)
    given = before.positions is not None and step.positions is not None
    positions = torch.cat([before.positions, step.positions], 1) if given else None
    return Pass(step.stage, mask, positions, torch.cat([before.residual, step.residual], 1))


def swap(
    model: TransformersModel,
    teacher: TransformersModel,
    layer: int,
    heads: Iterable[Head | str] | None = None,
    student_heads: Iterable[Head | str] | None = None,
) -> TransformersModel:
    """A view of ``model``, the student, in which heads of ``teacher`` do the mixing of ``layer``.

    In use, for paper A's three replacements in Llamba-8B::

        swap(student, teacher, 17)                        # all of layer 17
        swap(student, teacher, 17, ["L17H24"])            # one head of the teacher, none of the student
        swap(student, teacher, 17, ["L17H24", "L17H27"])

    Args:
        heads: the teacher's heads that come in; None is its whole mixer.
        student_heads: the student's heads that give way; None is all of the layer.

    Raises:
        ValueError: teacher and student of different widths, or the same model; a layer that either does not
            have, or where the teacher has two mixers; a head that does not exist or is of another layer.
    """
    enter = None if heads is None else resolve(teacher, heads)
    return apply(model, Swap(teacher, layer, enter, None if student_heads is None else resolve(model, student_heads)))
