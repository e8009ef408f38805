"""Mamba-1, one channel: the matrix of Ali et al. (2024), 'The hidden attention of Mamba models'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.discrete_mamba2 import decays

if TYPE_CHECKING:
    from nnsight import Envoy

Saved = tuple[Tensor, Tensor, Tensor, Tensor]


def read(mixer: Envoy, layer: int) -> Saved:
    """Values (1, tokens, channels), step size before its projection (1, tokens, rank), B and C (1, tokens, N)."""
    values, projected = mixer.x_proj.input, mixer.x_proj.output
    if hasattr(mixer._module, "dt_layernorm"):  # FalconMamba and Jamba normalise the three
        return values, mixer.dt_layernorm.output, mixer.b_layernorm.output, mixer.c_layernorm.output
    state = mixer._module.ssm_state_size
    return values, *projected.split([projected.shape[-1] - 2 * state, state, state], dim=-1)


def mix(module: nn.Module, saved: Saved, indices: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each channel's matrix (tokens, tokens) and values (tokens, 1).

    With the step size Δ and the N decays exp(Δ_k A) of the channel,
    M[i, j] = C_i · (∏_{j<k≤i} exp(Δ_k A)) Δ_j B_j, plus D on the diagonal. The values are the
    channel after convolution and activation; the output is the channel before the gate.
    """
    values, step, B, C = (each[0].float() for each in saved)
    for index in indices:
        weight, bias, A_log, D = (
            each[index].float() for each in (module.dt_proj.weight, module.dt_proj.bias, module.A_log, module.D)
        )
        delta = F.softplus(step @ weight + bias)[:, None]  # (tokens, 1)
        decayed = decays(-A_log.exp() * delta[None])[0]  # (N, tokens, tokens)
        matrix = torch.einsum("in,nij,jn->ij", C, decayed, delta * B)
        matrix.diagonal().add_(D)
        yield matrix, values[:, index : index + 1]
