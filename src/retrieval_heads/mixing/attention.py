"""Attention: the matrix is the softmax weights, the values are the value projection's output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from nnsight import Envoy


def read(mixer: Envoy, layer: int) -> tuple[Tensor, Tensor]:
    """Values (1, tokens, key-value heads × width) and, under eager attention, weights (1, heads, tokens, tokens)."""
    values = mixer.v_proj.output
    if getattr(mixer.config, "use_shared_attention_adapter", False):
        # Zamba2: layers share the projection, and each adds an adapter of its own.
        values = values + mixer.linear_v_adapter_list[mixer.layer_dic[layer]].output
    return values, mixer.output[1]


def mix(module: nn.Module, saved: tuple[Tensor, Tensor], indices: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each head's matrix (tokens, tokens) and values (tokens, width), which several heads may share.

    M[i, j] is the softmax weight, 0 outside a sliding window. The head's output, M times its
    values, is its slice of the output projection's input.
    """
    values, weights = saved
    values = values[0].unflatten(-1, (-1, module.head_dim))
    for index in indices:
        yield weights[0, index], values[:, index // module.num_key_value_groups]
