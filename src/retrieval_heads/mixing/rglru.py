"""The RG-LRU of RecurrentGemma, one channel (De et al., 2024, 'Griffin', section 2.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.discrete_mamba2 import decays

if TYPE_CHECKING:
    from nnsight import Envoy


def read(mixer: Envoy, layer: int) -> Tensor:
    """The input of the recurrence, (1, tokens, channels)."""
    return mixer.rg_lru.input


def mix(module: nn.Module, saved: Tensor, indices: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each channel's matrix (tokens, tokens) and values (tokens, 1).

    With the token's decay a and input gate g, M[i, j] = (∏_{j<k≤i} a_k) g_j √(1 - a_j²), where the
    root is 1 at the first token. The values are the channel after the convolution; the output is
    the channel before it is multiplied with the block's other branch.
    """
    unit, values = module.rg_lru, saved[0].float()
    blocks = values.unflatten(-1, unit.recurrent_gate_bias.shape)  # (tokens, blocks, block width)
    input_gate = _gate(blocks, unit.input_gate_weight, unit.input_gate_bias)
    recurrent_gate = _gate(blocks, unit.recurrent_gate_weight, unit.recurrent_gate_bias)
    log_a = -8 * recurrent_gate * F.softplus(unit.recurrent_param.float())
    written = (1 - torch.exp(2 * log_a)).sqrt()
    written[0] = 1
    written *= input_gate
    for index in indices:
        yield decays(log_a[None, :, [index]])[0, 0] * written[:, index], values[:, index : index + 1]


def _gate(blocks: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A block-diagonal projection and a sigmoid, (tokens, channels)."""
    return torch.sigmoid(torch.einsum("tbi,bij->tbj", blocks, weight.float()) + bias.float()).flatten(1)
