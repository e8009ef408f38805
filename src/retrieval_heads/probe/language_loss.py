"""Language-modelling loss: the damage that an intervention does to ordinary text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from ..interventions.edits import Intervention, apply
from ..progress import bar

if TYPE_CHECKING:
    from nnsight import TransformersModel


@torch.no_grad()
def language_loss(
    model: TransformersModel,
    windows: torch.Tensor,
    interventions: Sequence[Intervention],
    *,
    progress: bool | None = None,
) -> np.ndarray:
    """Mean loss of each window of running text under each intervention.

    Args:
        windows: (windows, tokens) token ids, at least two tokens a window.
        progress: show a bar; None shows it on a terminal only.

    Returns:
        (interventions, windows) float64, in nats a token.

    Raises:
        ValueError: windows of fewer than two tokens.
    """
    if windows.ndim != 2 or windows.shape[1] < 2:
        raise ValueError(f"language loss needs (windows, tokens) with at least 2 tokens, got {tuple(windows.shape)}")
    windows = windows.to(model.device)
    start = torch.tensor(model.tokenizer("").input_ids, dtype=torch.long, device=model.device)  # BOS, if it is usual
    losses = np.empty((len(interventions), len(windows)))
    shown = bar(progress=progress, total=losses.size, desc="loss", unit="window")
    for i, intervention in enumerate(interventions):
        view = apply(model, intervention)
        for j, window in enumerate(windows):
            logits = view.trace(input_ids=torch.cat([start, window])[None], use_cache=False, trace=False).logits
            losses[i, j] = cross_entropy(logits[0, len(start) : -1].float(), window[1:]).item()
            shown.update()
    shown.close()
    return losses
