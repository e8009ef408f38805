"""Mamba-2 and Discrete Mamba-2: one decay a head, keys and queries shared by a group of heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.discrete_mamba2 import DiscreteMamba2, mixing_matrix

if TYPE_CHECKING:
    from nnsight import Envoy


def read(mixer: Envoy, layer: int) -> Tensor:
    """The mixer's input of Discrete Mamba-2, of Mamba-2 the input's projection; (1, tokens, columns) both."""
    return mixer.input if isinstance(mixer._module, DiscreteMamba2) else mixer.in_proj.output


def mix(module: nn.Module, saved: Tensor, indices: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each head's matrix (tokens, tokens) and values (tokens, width).

    M[i, j] = (∏_{j<k≤i} a_k) C_i·B_j × the step size Δ_j, which is 1 in Discrete Mamba-2, plus D on
    the diagonal. The values are the head's channels after convolution and activation; the output
    is what they become before the gate, and before the norm where there is one.
    """
    if isinstance(module, DiscreteMamba2):
        x, B, C, log_a, _ = module.parts(saved)
        delta = torch.ones_like(log_a)
    else:
        x, B, C, log_a, delta = _parts(module, saved.float())
    heads, groups = x.shape[2], B.shape[2]
    for index in indices:
        one, group = [index], [index // (heads // groups)]
        written = B[:, :, group] * delta[:, :, one, None]
        matrix = mixing_matrix(written, C[:, :, group], log_a[:, :, one], module.D[one].float())
        yield matrix[0, 0], x[0, :, index]


def _parts(module: nn.Module, projected: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x (1, tokens, heads, width), B and C (1, tokens, groups, N), log a and Δ (1, tokens, heads) of Mamba-2."""
    inner, keys = module.intermediate_size, module.n_groups * module.ssm_state_size
    _gate, xBC, delta = projected.split([inner, inner + 2 * keys, module.num_heads], dim=-1)
    conv = module.conv1d
    bias = None if conv.bias is None else conv.bias.float()
    xBC = F.conv1d(xBC.mT, conv.weight.float(), bias, padding=conv.padding, groups=conv.groups)
    xBC = module.act(xBC[..., : projected.shape[1]]).mT
    x, B, C = xBC.split([inner, keys, keys], dim=-1)
    delta = F.softplus(delta + module.dt_bias.float()).clamp(*module.time_step_limit)
    return (
        x.unflatten(-1, (module.num_heads, -1)),
        B.unflatten(-1, (module.n_groups, -1)),
        C.unflatten(-1, (module.n_groups, -1)),
        -module.A_log.float().exp() * delta,
        delta,
    )
