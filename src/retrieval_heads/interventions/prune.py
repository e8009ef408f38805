"""Prune: layers, or only their mixers, taken out of the model (paper A, sections 3.2 and 3.3, appendix A.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ..models.families import mixers
from .edits import Edit, Pass, apply, check_layers, layer_path

if TYPE_CHECKING:
    from nnsight import TransformersModel


@dataclass(frozen=True)
class Prune:
    """Layers that no longer add to the residual stream.

    They still run, and what they add is discarded: a cache then has the same length in every
    layer, and positions that a model counts in one layer's cache stay right in ``generate``.

    Attributes:
        layers: single layers to prune.
        last: and so many from the end.
        mlp: prune the whole layer, which becomes the identity; or False, only its mixer, which then adds
            nothing, the bias of its output projection included. Layers that are nothing but a mixer
            (Mamba, Mamba-2, and all of Zamba2, whose shared block feeds a mixer) end up the same.
    """

    layers: tuple[int, ...] = ()
    last: int = 0
    mlp: bool = True

    def edits(self, model: TransformersModel) -> list[Edit]:
        """One edit a layer.

        Raises:
            ValueError: a layer that the model does not have.
        """
        count = model.config.num_hidden_layers
        if not 0 <= self.last <= count:
            raise ValueError(f"last={self.last} is not between 0 and the model's {count} layers")
        layers = check_layers(model, [*self.layers, *range(count - self.last, count)])
        if self.mlp:
            return [Edit(layer, layer_path(model, layer), _pass_on, "output") for layer in layers]
        final = {mixer.layer: mixer.path for mixer in mixers(model)}  # of two mixers, what the second one adds
        return [Edit(layer, final[layer], _nothing, "output") for layer in layers]

    def describe(self) -> dict:
        return {"prune": {"layers": list(self.layers), "last": self.last, "mlp": self.mlp}}


def _pass_on(values: Tensor, here: Pass) -> Tensor:
    return here.residual.to(values.device)


def _nothing(values: Tensor, here: Pass) -> Tensor:
    return values.new_zeros(values.shape)


def prune(
    model: TransformersModel, layers: Iterable[int] = (), *, last: int = 0, mlp: bool = True
) -> TransformersModel:
    """A view of ``model`` without ``layers`` and without its ``last`` ones; with ``mlp=False`` only their mixers go.

    In use::

        minimal = prune(model, last=14)
        without = prune(minimal, [16])

    Raises:
        ValueError: a layer that the model does not have.
    """
    return apply(model, Prune(tuple(layers), last, mlp))
