"""Discrete Mamba-2, the mixer of Llamba (Bick et al., 2025): a Mamba-2 whose input is not scaled by a step size.

Each of H value heads keeps one matrix, its state, and P of the layer's channels. With the token's
decay a_t in (0, 1], key B_t and query C_t (N numbers each) and value x_t (P numbers),

    h_t = a_t h_{t-1} + x_t B_tᵀ        y_t = h_t C_t + D x_t

which summed up is y = M x with M[i, j] = (∏_{j<k≤i} a_k) C_i·B_j for j ≤ i, plus D on the
diagonal. :func:`step_by_step` is the first form, :func:`mixing_matrix` the second, and
:func:`chunked` uses the second within chunks of the text and the first from chunk to chunk.

Shapes throughout: x (batch, tokens, H, P); B and C (batch, tokens, G, N), each of the G query-key
heads serving H / G value heads in a row; log_a = log a (batch, tokens, H); state (batch, H, P, N).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache


def decays(log_a: Tensor) -> Tensor:
    """How much of token j is left at token i: ∏_{j<k≤i} a_k, and 0 where j > i.

    Args:
        log_a: (batch, tokens, H).

    Returns:
        (batch, H, tokens, tokens).
    """
    # Each sum is made of its own terms: as a difference of two running sums it would lose digits to all before it.
    terms = log_a.transpose(1, 2)[..., None].expand(-1, -1, -1, log_a.shape[1]).tril(-1)  # [i, j] = log a_i if j < i
    return terms.cumsum(-2).exp().tril()


def mixing_matrix(B: Tensor, C: Tensor, log_a: Tensor, D: Tensor | None = None) -> Tensor:
    """The matrix that a head applies to its values: M[i, j] = (∏_{j<k≤i} a_k) C_i·B_j, plus D on the diagonal.

    Args:
        B, C: (batch, tokens, G, N).
        log_a: (batch, tokens, H).
        D: (H,), or None to leave it out.

    Returns:
        (batch, H, tokens, tokens), lower triangular, float32 at least.
    """
    B, C, log_a = _wide(B, C, log_a)
    products = torch.einsum("bign,bjgn->bgij", C, B)
    matrix = products.repeat_interleave(log_a.shape[2] // B.shape[2], dim=1) * decays(log_a)
    return matrix if D is None else matrix + D[:, None, None] * torch.eye(B.shape[1], device=D.device, dtype=D.dtype)


def step_by_step(x: Tensor, B: Tensor, C: Tensor, log_a: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The recurrence, token by token, from ``state`` (None: from zero), without D.

    Returns:
        y like x, and the state after the last token; both float32 at least.
    """
    x, B, C, log_a = _wide(x, B, C, log_a)
    B, C = _for_value_heads(B, C, x.shape[2])
    state = _zero_state(x, B) if state is None else state
    outputs = []
    for t in range(x.shape[1]):
        state = log_a[:, t].exp()[..., None, None] * state + x[:, t, :, :, None] * B[:, t, :, None, :]
        outputs.append((state @ C[:, t, :, :, None]).squeeze(-1))
    return torch.stack(outputs, dim=1), state


def chunked(
    x: Tensor, B: Tensor, C: Tensor, log_a: Tensor, size: int, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same in matrix products: a mixing matrix for each chunk of ``size`` tokens, and the state between chunks.

    Returns:
        What :func:`step_by_step` returns.
    """
    x, B, C, log_a = _wide(x, B, C, log_a)
    batch, tokens, heads, width = x.shape
    size = min(size, tokens)
    # A token of the last chunk's padding writes nothing (x = 0) and forgets nothing (log_a = 0).
    x, B, C, log_a = (F.pad(each, [0, 0] * (each.dim() - 2) + [0, -tokens % size]) for each in (x, B, C, log_a))
    x, B, C, log_a = (each.reshape(-1, size, *each.shape[2:]) for each in (x, B, C, log_a))  # (batch × chunks, size, …)

    y = torch.einsum("bhij,bjhp->bihp", mixing_matrix(B, C, log_a), x)

    B, C = _for_value_heads(B, C, heads)
    since_start = log_a.cumsum(1)
    until_end = F.pad(log_a[:, 1:], (0, 0, 0, 1)).flip(1).cumsum(1).flip(1)
    written = torch.einsum("bjhp,bjhn->bhpn", x * until_end.exp()[..., None], B)
    kept = since_start[:, -1].exp()[..., None, None]
    state, starts = _zero_state(x[:batch], B[:batch]) if state is None else state, []
    for keep, new in zip(kept.unflatten(0, (batch, -1)).unbind(1), written.unflatten(0, (batch, -1)).unbind(1)):
        starts.append(state)
        state = keep * state + new
    starts = torch.stack(starts, dim=1).flatten(0, 1)
    y = y + torch.einsum("bihn,bhpn->bihp", C * since_start.exp()[..., None], starts)
    return y.reshape(batch, -1, heads, width)[:, :tokens], state


@functools.cache
def fused_kernel() -> Callable | None:
    """mamba-ssm's kernel for the chunked form of Mamba-2, or None where mamba-ssm is not installed."""
    try:
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
    except ImportError:
        return None
    return mamba_chunk_scan_combined


def fused(
    kernel: Callable, x: Tensor, B: Tensor, C: Tensor, log_a: Tensor, size: int, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """:func:`chunked` by a kernel of Mamba-2, where one step size both scales a token's value and sets the decay.

    With A = -1 and the step size -log_a the decay is right; values divided by it beforehand come out unscaled.
    """
    step = -log_a.clamp(max=-1e-8)  # a head that forgets nothing would divide by zero
    A = -torch.ones(x.shape[2], device=x.device)
    return kernel(
        (x / step[..., None]).to(x.dtype), step, A, B, C, size, initial_states=state, return_final_states=True
    )


class DiscreteMamba2(nn.Module):
    """The mixer of one layer. Parameters are named and ordered as in Llamba's published checkpoints.

    Args:
        hidden_size: channels of the layer's input and output.
        layer_idx: the layer's place in the generation cache.
        d_state: N, the size of a key or query.
        n_v_heads: H, heads with values and states of their own.
        n_qk_heads: G, heads with keys and queries of their own; divides H.
        expand: H × P is ``expand × hidden_size``.
        chunk_size: tokens a chunk.
        d_conv: tokens that the causal convolution sees.
        activation: after the convolution, "identity" or "silu".
        bias: biases in both projections (then there is no ``z_bias``).
        conv_bias: a bias in the convolution.

    Raises:
        ValueError: head counts that do not divide, or another activation.
    """

    def __init__(
        self,
        hidden_size: int,
        layer_idx: int = 0,
        *,
        d_state: int = 64,
        n_v_heads: int = 32,
        n_qk_heads: int = 32,
        expand: int = 1,
        chunk_size: int = 128,
        d_conv: int = 4,
        activation: str = "identity",
        bias: bool = False,
        conv_bias: bool = True,
    ) -> None:
        super().__init__()
        inner, keys = expand * hidden_size, n_qk_heads * d_state
        if inner % n_v_heads:
            raise ValueError(f"n_v_heads={n_v_heads} does not divide expand × hidden_size = {inner}")
        if n_v_heads % n_qk_heads:
            raise ValueError(f"n_qk_heads={n_qk_heads} does not divide n_v_heads={n_v_heads}")
        if activation not in ("identity", "silu"):
            raise ValueError(f"activation={activation!r} is not 'identity' or 'silu'")
        self.layer_idx, self.chunk_size, self.d_conv = layer_idx, chunk_size, d_conv
        self.value_shape, self.key_shape = (n_v_heads, inner // n_v_heads), (n_qk_heads, d_state)
        self.widths = [inner, keys, keys]
        self.in_proj = nn.Linear(hidden_size, 2 * inner + 2 * keys + n_v_heads, bias=bias)
        self.conv1d = nn.Conv1d(sum(self.widths), sum(self.widths), d_conv, groups=sum(self.widths), bias=conv_bias)
        self.act = nn.SiLU() if activation == "silu" else nn.Identity()
        self.D = nn.Parameter(torch.ones(n_v_heads))
        self.register_parameter("z_bias", None if bias else nn.Parameter(torch.zeros(inner)))
        self.out_proj = nn.Linear(inner, hidden_size, bias=bias)

    def parts(
        self, hidden: Tensor, cache: Cache | None = None, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What the layer's input says to each head.

        Args:
            hidden: (batch, tokens, hidden_size), after the layer's norm.
            cache: what came before is read from it, for the convolution, and the new tokens are added.
            attention_mask: (batch, tokens), 0 at padding: it writes nothing and forgets nothing.

        Returns:
            x (batch, tokens, H, P); B, C (batch, tokens, G, N); log_a (batch, tokens, H), float32 at
            least and never positive; z (batch, tokens, H × P), ``z_bias`` added. The layer's output is
            ``out_proj`` of the heads' outputs, side by side, × silu(z).
        """
        mask = None if attention_mask is None else attention_mask[..., None].to(hidden.dtype)
        xBC, z, A_log = self.in_proj(hidden).split([sum(self.widths), self.widths[0], self.value_shape[0]], dim=-1)
        xBC = xBC if mask is None else xBC * mask
        xBC = self._convolution(xBC.transpose(1, 2), cache, attention_mask).transpose(1, 2)
        xBC = xBC if mask is None else xBC * mask
        x, B, C = xBC.split(self.widths, dim=-1)
        log_a = -F.softplus(*_wide(A_log))
        return (
            x.unflatten(-1, self.value_shape),
            B.unflatten(-1, self.key_shape),
            C.unflatten(-1, self.key_shape),
            log_a if mask is None else log_a * mask,
            z if self.z_bias is None else z + self.z_bias,
        )

    def _convolution(self, new: Tensor, cache: Cache | None, attention_mask: Tensor | None) -> Tensor:
        """The causal convolution over ``new`` (batch, channels, tokens), and what ``cache`` has before it."""
        tokens, width = new.shape[2], self.d_conv
        seen = new if cache is None else cache.update_conv_state(new, self.layer_idx, conv_kernel_size=width)
        seen = F.pad(seen, (width, 0))
        if cache is not None and attention_mask is not None:
            # The cache keeps the last columns. With padding on the right, those before a row's padding are wanted.
            real = (attention_mask != 0) * torch.arange(1, tokens + 1, device=new.device)
            last = (seen.shape[2] - tokens + real.amax(1))[:, None] - torch.arange(width, 0, -1, device=new.device)
            window = seen.gather(2, last[:, None].expand(-1, seen.shape[1], -1))
            cache.get_conv_state(self.layer_idx).copy_(window)
        return self.act(self.conv1d(seen[..., seen.shape[2] - tokens - width + 1 :]))

    def forward(self, hidden: Tensor, cache: Cache | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """The layer's output, (batch, tokens, hidden_size); arguments as for :meth:`parts`."""
        x, B, C, log_a, z = self.parts(hidden, cache, attention_mask)
        state = None if cache is None else cache.get_recurrent_state(self.layer_idx)
        y, state = self._scan(x, B, C, log_a, state)
        if cache is not None:
            cache.update_recurrent_state(state, self.layer_idx)
        y = (y + self.D[:, None] * x).flatten(2) * F.silu(z)
        return self.out_proj(y.to(hidden.dtype))

    def _scan(self, x: Tensor, B: Tensor, C: Tensor, log_a: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        if x.shape[1] == 1:
            return step_by_step(x, B, C, log_a, state)
        # float16 is left out: values divided by a small step size overflow in it.
        if x.is_cuda and x.dtype != torch.float16 and fused_kernel() is not None:
            return fused(fused_kernel(), x, B, C, log_a, self.chunk_size, state)
        return chunked(x, B, C, log_a, self.chunk_size, state)


def _wide(*tensors: Tensor) -> list[Tensor]:
    """In float32, or float64 where they are: sums over many tokens lose too much in 16 bits."""
    return [each.to(torch.promote_types(each.dtype, torch.float32)) for each in tensors]


def _for_value_heads(B: Tensor, C: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and queries repeated for each value head: (batch, tokens, H, N)."""
    return tuple(each.repeat_interleave(heads // each.shape[2], dim=2) for each in (B, C))


def _zero_state(x: Tensor, B: Tensor) -> Tensor:
    return x.new_zeros(x.shape[0], x.shape[2], x.shape[3], B.shape[3])
