"""Faster recurrences on a CPU: the numbers of transformers' reference loops, in a fraction of the time.

Without a GPU's fused kernels transformers runs Mamba-1 and the RG-LRU as Python loops whose every
step autograd records, and Mamba-2 in tensors laid out for clarity. Here the loops are one autograd
function each, whose steps stay in the processor's cache, and Mamba-2 is the chunked form of
:mod:`.discrete_mamba2`. :func:`install` puts them in transformers' place; a test compares both, with gradients.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, wraps

import torch
import torch.nn.functional as F
from torch import Tensor

from .discrete_mamba2 import chunked

# Longer chunks cost more products within them, shorter ones more states between them.
CHUNK = 32


class _SelectiveScan(torch.autograd.Function):
    """Mamba-1: h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t u_t, y_t = C_t·h_t, for every channel.

    Time comes first: u and dt (T, batch, D), A (D, N), B and C (T, batch, N). Returns y (T, batch, D) and every h.
    """

    @staticmethod
    def forward(ctx, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        states = u.new_empty(*u.shape, A.shape[1])  # (T, batch, D, N)
        fed = dt * u
        h = torch.zeros_like(states[0])
        for t in range(len(u)):
            decay = (dt[t, :, :, None] * A).exp_()
            torch.addcmul(decay.mul_(h), fed[t, :, :, None], B[t, :, None, :], out=states[t])
            h = states[t]
        ctx.save_for_backward(u, dt, A, B, C, states)
        ctx.mark_non_differentiable(states)
        return torch.einsum("tbdn,tbn->tbd", states, C), states

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        u, dt, A, B, C, states = ctx.saved_tensors
        grad_A = torch.zeros_like(A)
        grad_fed, grad_dt, grad_B = torch.empty_like(u), torch.empty_like(u), torch.empty_like(B)
        fed, before = dt * u, torch.zeros_like(states[0])
        g = torch.zeros_like(states[0])  # the gradient of h_t through everything after it
        for t in range(len(u) - 1, -1, -1):
            g.addcmul_(grad[t, :, :, None], C[t, :, None, :])
            grad_fed[t] = torch.bmm(g, B[t, :, :, None]).squeeze(-1)
            grad_B[t] = torch.bmm(fed[t, :, None, :], g).squeeze(1)
            g.mul_((dt[t, :, :, None] * A).exp_())
            through = g * (states[t - 1] if t else before)  # of the exponent Δ_t A
            grad_dt[t] = (through * A).sum(-1)
            grad_A.add_((through * dt[t, :, :, None]).sum(0))
        grad_C = torch.einsum("tbd,tbdn->tbn", grad, states)
        return grad_fed * dt, grad_dt + grad_fed * u, grad_A, grad_B, grad_C


class _LinearScan(torch.autograd.Function):
    """h_t = a_t h_{t-1} + x_t along the first dimension, from h_0 = ``start``; all elementwise. Returns every h."""

    @staticmethod
    def forward(ctx, a: Tensor, x: Tensor, start: Tensor) -> Tensor:
        states = torch.empty_like(x)
        h = start
        for t in range(len(x)):
            torch.addcmul(x[t], a[t], h, out=states[t])
            h = states[t]
        ctx.save_for_backward(a, states, start)
        return states

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        a, states, start = ctx.saved_tensors
        grads = torch.empty_like(grad)
        g = torch.zeros_like(start)
        for t in range(len(grad) - 1, -1, -1):
            torch.add(grad[t], g, out=grads[t])
            g = grads[t] * a[t]
        return grads * torch.cat([start[None], states[:-1]]), grads, g


def selective_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **kwargs,
) -> Tensor | tuple[Tensor, Tensor]:
    """Stands in for transformers' ``mamba_selective_scan``, with its arguments.

    hidden_states, dt and z are (batch, D, T), A is (D, N), B and C are (batch, N, T).
    """
    if delta_bias is not None:
        dt = dt + delta_bias.to(dt.dtype)[..., None]
    if delta_softplus:
        dt = F.softplus(dt)
    u, step, keys, queries = (each.permute(2, 0, 1).float().contiguous() for each in (hidden_states, dt, B, C))
    y, states = _SelectiveScan.apply(u, step, A.float(), keys, queries)
    out = y.permute(1, 2, 0).to(hidden_states.dtype)
    if D is not None:
        out = out + hidden_states * D[None, :, None]
    if z is not None:
        out = out * F.silu(z)
    return (out, states[-1]) if return_last_state else out  # the state stays in float32, as transformers keeps it


def chunk_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **kwargs,
) -> Tensor | tuple[Tensor, Tensor]:
    """Stands in for transformers' ``mamba2_chunk_scan``, with its arguments.

    hidden_states is (batch, T, H, P), dt (batch, T, H), A and D (H,), B and C (batch, T, G, N).
    """
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = F.softplus(dt)
    dt = dt.clamp(*dt_limit).float()
    x = hidden_states.float()
    y, state = chunked(x * dt[..., None], B, C, A.float() * dt, CHUNK, initial_states)
    if D is not None:
        y = y + D[..., None] * x
    return (y, state) if return_final_states else y


def rnn_scan(
    self,
    hidden_states: Tensor,
    recurrent_gate: Tensor,
    reset: Tensor,
    recurrent_states: Tensor | None,
    acc_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Stands in for RecurrentGemma's ``RecurrentGemmaRglru._rnn_scan``; all tensors are (batch, T, channels)."""
    gate = (recurrent_gate * ~reset).type(acc_dtype).transpose(0, 1).contiguous()
    x = hidden_states.type(acc_dtype).transpose(0, 1).contiguous()
    start = torch.zeros_like(x[0]) if recurrent_states is None else recurrent_states.type(acc_dtype)
    states = _LinearScan.apply(gate, x, start.to(x.device))
    return states.transpose(0, 1).type(hidden_states.dtype), states[-1]


def _on_cpu(fast: Callable, reference: Callable) -> Callable:
    """``fast`` where the tensors are on a CPU, ``reference`` elsewhere."""

    @wraps(reference)
    def chosen(*args, **kwargs):
        tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        return (fast if tensor.device.type == "cpu" else reference)(*args, **kwargs)

    return chosen


@cache
def install() -> None:
    """Let every Mamba, Mamba-2 and RG-LRU of transformers run these on a CPU, in this process."""
    for name in ("mamba", "falcon_mamba", "jamba"):
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        module.mamba_selective_scan = _on_cpu(selective_scan, module.mamba_selective_scan)
    for name in ("mamba2", "zamba2", "bamba"):
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        module.mamba2_chunk_scan = _on_cpu(chunk_scan, module.mamba2_chunk_scan)
    rglru = importlib.import_module("transformers.models.recurrent_gemma.modeling_recurrent_gemma").RecurrentGemmaRglru
    rglru._rnn_scan = _on_cpu(rnn_scan, rglru._rnn_scan)
