"""What an attention head attends to: its softmax weights for a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import nnsight
import torch

from ..heads import Head
from ..models.families import family, resolve

if TYPE_CHECKING:
    from nnsight import TransformersModel


@torch.no_grad()
def attention_weights(model: TransformersModel, prompt: str, heads: Iterable[Head | str]) -> dict[Head, torch.Tensor]:
    """Each head's attention to the tokens of ``prompt``.

    Returns:
        For each head a (tokens, tokens) float32 tensor on the CPU: row i says how token i's
        attention is spread over the tokens up to i; a row sums to 1.

    Raises:
        ValueError: a head that the model does not have, or one that is not an attention head.
    """
    wanted = resolve(model, heads)
    for head in wanted:
        if head.kind != "attention":
            raise ValueError(f"{head} has no attention weights: it is a {head.kind} head")
    layers = model.get(family(model).layers)
    needed = sorted({head.layer for head in wanted})
    with _eager(model), model.trace(prompt, use_cache=False):
        weights = nnsight.save([layers[i].self_attn.output[1] for i in needed])
    by_layer = dict(zip(needed, weights))
    return {head: by_layer[head.layer][0, head.index].float().cpu() for head in wanted}


@contextmanager
def _eager(model: TransformersModel) -> Iterator[None]:
    """The one attention implementation that computes the weights as a matrix."""
    usual = model._module.config._attn_implementation
    model._module.set_attn_implementation("eager")
    try:
        yield
    finally:
        model._module.set_attn_implementation(usual)
