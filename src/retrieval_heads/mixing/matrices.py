"""The mixing matrix of any head: how much of each earlier token's value a token's output holds (paper A, section 2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import nnsight
import torch
from torch import Tensor

from ..heads import Head
from ..models.families import mixers, resolve
from . import attention, mamba, mamba2, rglru

if TYPE_CHECKING:
    from nnsight import TransformersModel

# Each has `read`, what to save of a mixer during a forward pass, and `mix`, matrices and values from what was saved.
KINDS = {"attention": attention, "mamba": mamba, "mamba2": mamba2, "rglru": rglru}


@dataclass(frozen=True)
class Mixing:
    """What one head does to a prompt: ``output = matrix @ values``, float32 on the CPU.

    Attributes:
        matrix: (tokens, tokens), lower triangular; row i says what token i's output is made of.
            An attention head's weights are at least 0 and sum to 1 in each row; others' need not.
        values: (tokens, width), what the head mixes: the value projection of an attention head,
            else the layer's input after its projection, convolution and activation.
    """

    matrix: Tensor
    values: Tensor

    @property
    def output(self) -> Tensor:
        """(tokens, width): the head's output, before any gate, norm and output projection."""
        return self.matrix @ self.values


@torch.no_grad()
def mixings(model: TransformersModel, prompt: str, heads: Iterable[Head | str]) -> dict[Head, Mixing]:
    """Each head's mixing matrix for ``prompt``, and the values that it mixes.

    One forward pass, whatever the heads; of a view made by :func:`~retrieval_heads.apply`, the edited
    one. A head that the view knocks out has its matrix still: only what it writes is gone. Matrices
    are made for ``heads`` alone, (tokens, tokens) each.

    In use::

        (mixing,) = mixings(model, "cat:7\\ndog:3\\ncat:", ["L16H0"]).values()
        mixing.matrix[-1]  # what the last token's output is made of

    Raises:
        ValueError: a head that the model does not have, or an empty prompt.
    """
    if not prompt:
        raise ValueError("an empty prompt has no tokens to mix")
    wanted = resolve(model, heads)
    indices: dict[tuple[int, str], list[int]] = {}
    for head in wanted:
        indices.setdefault((head.layer, head.kind), []).append(head.index)
    needed = [mixer for mixer in mixers(model) if (mixer.layer, mixer.kind) in indices]
    paths = [mixer.module for mixer in needed]
    with _eager(model), model.trace(prompt, use_cache=False):
        saved = nnsight.save([KINDS[m.kind].read(model.get(path), m.layer) for m, path in zip(needed, paths)])
    found = {}
    for mixer, path, tensors in zip(needed, paths, saved):
        here = indices[mixer.layer, mixer.kind]
        parts = KINDS[mixer.kind].mix(model._module.get_submodule(path), tensors, here)
        for index, (matrix, values) in zip(here, parts):
            found[Head(mixer.layer, index, mixer.kind)] = Mixing(matrix.float().cpu(), values.float().cpu())
    return {head: found[head] for head in wanted}


@contextmanager
def _eager(model: TransformersModel) -> Iterator[None]:
    """The one attention implementation that computes the weights as a matrix."""
    usual = model._module.config._attn_implementation
    model._module.set_attn_implementation("eager")
    try:
        yield
    finally:
        model._module.set_attn_implementation(usual)
