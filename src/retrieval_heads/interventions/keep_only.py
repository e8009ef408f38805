"""Keep only some heads: every other one of the layers is knocked out (paper A, section 3.4 and appendix A.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..heads import Head, HeadSet
from ..models.families import heads_of, resolve
from .edits import Edit, apply, check_kinds, check_layers
from .knockout import Knockout

if TYPE_CHECKING:
    from nnsight import TransformersModel


@dataclass(frozen=True)
class KeepOnly:
    """The heads of ``layers`` that are not in ``heads`` removed together.

    Attributes:
        heads: the heads that stay. One outside ``layers`` stays anyway.
        layers: where the others are removed; None is every layer.
        kinds: the kinds of heads of which the others are removed, such as ``("attention",)``; None is every kind.
    """

    heads: HeadSet
    layers: tuple[int, ...] | None = None
    kinds: tuple[str, ...] | None = None

    def knockout(self, model: TransformersModel) -> Knockout:
        """The knockout that this is on ``model``.

        Raises:
            ValueError: a head, a layer or a kind of head that the model does not have.
        """
        everyone = heads_of(model)
        layers = None if self.layers is None else check_layers(model, self.layers)
        kinds = None if self.kinds is None else check_kinds(model, self.kinds)
        removable = [
            h for h in everyone if (layers is None or h.layer in layers) and (kinds is None or h.kind in kinds)
        ]
        return Knockout(HeadSet(removable) - resolve(model, self.heads))

    def edits(self, model: TransformersModel) -> list[Edit]:
        return self.knockout(model).edits(model)

    def describe(self) -> dict:
        heads = [str(head) for head in self.heads]
        layers, kinds = (None if chosen is None else list(chosen) for chosen in (self.layers, self.kinds))
        return {"keep_only": {"heads": heads, "layers": layers, "kinds": kinds}}


def keep_only(
    model: TransformersModel,
    heads: Iterable[Head | str],
    layers: Iterable[int] | None = None,
    kinds: Iterable[str] | None = None,
) -> TransformersModel:
    """A view of ``model`` in which, of the heads of ``layers``, only ``heads`` are left.

    In use, for the critical heads of the last two layers of a minimal model::

        minimal = prune(model, last=14)
        critical = keep_only(minimal, ["L16H22", "L17H24"], layers=[16, 17])

    Raises:
        ValueError: a head, a layer or a kind of head that the model does not have.
    """
    chosen = (None if each is None else tuple(each) for each in (layers, kinds))
    return apply(model, KeepOnly(resolve(model, heads), *chosen))
