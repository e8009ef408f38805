"""Attribution: every head's effect, estimated from gradients instead of knockouts.

To first order, removing a head changes a metric by minus the gradient of the metric with respect
to the head's output, times that output: attribution patching (Nanda, 2023; Kramár et al., 2024,
'AtP*'), here towards zero. ``gradient`` takes the gradient in the intact model: one forward and one
backward pass for all heads. It underestimates heads on which a saturated softmax depends: their
gradient is small although their removal is a catastrophe.

``midpoint`` corrects for that. The effect is the integral of the gradient along the way from the
head's output to zero; the midpoint rule replaces it by the gradient half way. To need only one
forward and one backward pass a layer, whatever the number of heads, all heads of the layer are put
half way together, so that heads of one layer see each other weakened. How close both estimates come
is measured in ``benchmarks/attribution.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import nnsight
import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import one_hot

from ..models.families import Mixer, mixers, packs
from ..progress import bar
from ..tasks.items import Task
from .encoding import encode
from .head_scores import HeadScores
from .layout import Layout, lay_out
from .passes import inputs
from .tree import grow

if TYPE_CHECKING:
    from nnsight import TransformersModel

HALF = 0.5


def attribute(
    model: TransformersModel,
    task: Task,
    method: Literal["gradient", "midpoint"] = "midpoint",
    *,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Estimate what the knockout of each head would take from the right answers' log-odds.

    Args:
        method: ``gradient``, one forward and one backward pass a context; or ``midpoint``, one of
            each a layer and context, with less bias where the gradient is saturated.
        progress: show a bar; None shows it on a terminal only.

    Returns:
        One row a head, the largest estimate first: ``layer``, ``head``, ``kind``, ``estimate`` (nats,
        the mean over the items of the fall of the answer's log-odds against the other candidates).

    Raises:
        ValueError: an unknown method, or a task that the tokenizer cannot express.
    """
    if method not in ("gradient", "midpoint"):
        raise ValueError(f"method={method!r} is not 'gradient' or 'midpoint'")
    encoded = encode(items := task.items(model.tokenizer), model.tokenizer)
    trees = grow(encoded, [item.context for item in items])
    found = mixers(model)
    # All mixers of a layer at a time; or all layers together, at their full output.
    by_layer = [[m for m in found if m.layer == layer] for layer in sorted({m.layer for m in found})]
    groups, scale = ([found], 1.0) if method == "gradient" else (by_layer, HALF)
    totals = {mixer: torch.zeros(mixer.heads, dtype=torch.float64) for mixer in found}
    work = [(tree, group) for tree in trees for group in groups]
    for tree, group in bar(work, progress=progress, desc=method, unit="pass"):
        layout = lay_out(tree, packs(model, tree.longest()))
        answers = torch.tensor([encoded[index].answer for index in tree.items])
        for mixer, effects in zip(group, _effects(model, layout, answers, group, scale)):
            totals[mixer] += effects
    rows = [
        (m.layer, i, m.kind, total.item() / len(items)) for m, each in totals.items() for i, total in enumerate(each)
    ]
    table = pd.DataFrame(rows, columns=["layer", "head", "kind", "estimate"])
    return table.sort_values(["estimate", "layer", "head"], ascending=[False, True, True], ignore_index=True)


def _effects(
    model: TransformersModel, layout: Layout, answers: Tensor, group: Sequence[Mixer], scale: float
) -> list[Tensor]:
    """What each head of each mixer of ``group`` does for the summed log-odds: a (heads,) tensor a mixer."""
    with model.trace(**inputs(model, layout, 1)):
        outputs = []
        for number, mixer in enumerate(group):
            values = model.get(mixer.path).input
            if number == 0:  # the graph begins here: neither the parameters nor the layers below need gradients
                values = values.detach().requires_grad_()
            scaled = values * scale
            model.get(mixer.path).input = scaled
            outputs.append(scaled)
        logits = model.output.logits
        total = _log_odds(layout, logits, answers).sum()
        with total.backward():
            gradients = nnsight.save([output.grad for output in reversed(outputs)])
        kept = nnsight.save([output.detach() for output in outputs])
    return [
        (output / scale * gradient).unflatten(-1, (mixer.heads, mixer.width)).sum((0, 1, 3)).double().cpu()
        for mixer, output, gradient in zip(group, kept, reversed(gradients))
    ]


def _log_odds(layout: Layout, logits: Tensor, answers: Tensor) -> Tensor:
    """(items,) log-odds of the right candidates, differentiable."""
    scores = layout.read(logits, 1)[0][0]
    answers = answers.to(scores.device)
    scores = scores.nan_to_num(nan=-torch.inf)  # no candidate
    right = one_hot(answers, scores.shape[1]).bool()
    return scores[right] - scores.masked_fill(right, -torch.inf).logsumexp(1)


def agreement(estimates: pd.DataFrame, exact: HeadScores, top: int = 20, must_have: int = 5) -> dict[str, float]:
    """How well an estimate ranks the heads, against the exact sweep of the same task.

    Returns:
        ``rank correlation``: Spearman's, of the estimate with the exact drop in accuracy;
        ``recall``: the share of the ``top`` exact heads among the ``top`` estimated ones;
        ``kept``: how many of the ``must_have`` costliest heads are among the ``top`` estimated ones.
    """
    place = ["layer", "head", "kind"]
    both = exact.table.merge(estimates, on=place, validate="one_to_one")
    chosen = both.nlargest(top, "estimate").index
    return {
        "rank correlation": float(stats.spearmanr(both["estimate"], both["drop"])[0]),
        "recall": len(set(both.index[:top]) & set(chosen)) / top,
        "kept": len(set(both.index[:must_have]) & set(chosen)),
    }
