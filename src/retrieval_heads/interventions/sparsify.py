"""Sparsify: in each attention layer, only the k most focused heads write at a token (paper B, Figs 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from .edits import Edit, Pass, apply, attentions

if TYPE_CHECKING:
    from nnsight import TransformersModel

By = Literal["entropy", "needle", "random"]


@dataclass(frozen=True)
class Sparsify:
    """In each attention layer and at each token, ``k`` heads write and the others are silent.

    Attributes:
        k: heads that write, of each layer; 0 takes attention away, and from all of a layer's on nothing changes.
        by: which ones. ``"entropy"``, the paper's choice, takes those whose attention has the lowest entropy;
            ``"needle"`` those with most attention on tokens marked as the needle; ``"random"`` any, drawn anew for
            every position. (The same heads at every token are a :class:`.KeepOnly`.)
        seed: of ``"random"``. The draw depends on it, the layer and the position in the prompt, nothing else.
    """

    k: int
    by: By = "entropy"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.k < 0:
            raise ValueError(f"k={self.k} is a number of heads and cannot be negative")
        if self.by not in get_args(By):
            raise ValueError(f"by={self.by!r} is not one of {', '.join(map(repr, get_args(By)))}")

    def edits(self, model: TransformersModel) -> list[Edit]:
        """One edit of each attention layer's weights.

        Raises:
            ValueError: the model has no attention, or not eager attention.
        """
        return [
            Edit(mixer.layer, mixer.module, partial(self._silence, layer=mixer.layer), "weights")
            for mixer in attentions(model)
        ]

    def _silence(self, weights: Tensor, here: Pass, layer: int) -> Tensor:
        """A head without weights writes zeros."""
        if self.k >= weights.shape[1]:
            return weights
        preferred = self._preference(weights, here, layer).sort(dim=1, descending=True, stable=True).indices
        silent = torch.ones(weights.shape[:3], dtype=torch.bool, device=weights.device)
        silent.scatter_(1, preferred[:, : self.k], False)
        return weights.masked_fill(silent[..., None], 0)

    def _preference(self, weights: Tensor, here: Pass, layer: int) -> Tensor:
        """(rows, heads, tokens), the larger the sooner a head is kept; of equals the first."""
        if self.by == "entropy":
            return torch.special.entr(weights.float()).sum(-1).neg()
        if self.by == "needle":
            needle = here.marked("needle", weights.shape[-1]).to(weights.device)
            return (weights.float() * needle[:, None, None]).sum(-1)
        positions = here.places(weights.shape[-1])
        drawn = np.random.default_rng([self.seed, layer]).random((int(positions.max()) + 1, weights.shape[1]))
        return torch.from_numpy(drawn).to(weights.device)[positions.to(weights.device)].transpose(1, 2)

    def describe(self) -> dict:
        seed = {"seed": self.seed} if self.by == "random" else {}
        return {"sparsify": {"k": self.k, "by": self.by, **seed}}


def sparsify(model: TransformersModel, k: int, by: By = "entropy", seed: int = 0) -> TransformersModel:
    """A view of ``model`` in which, at each token, ``k`` heads of each attention layer write.

    In use::

        model = load("zoo/jamba", attn_implementation="eager")
        view = sparsify(model, k=1)

    Raises:
        ValueError: a negative ``k``, an unknown ``by``, a model without attention or without eager attention.
    """
    return apply(model, Sparsify(k, by, seed))
