"""Patch: heads give what they gave in another run (activation patching; Meng et al., 2022, Wang et al., 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import nnsight
import torch
from torch import Tensor

from ..heads import HeadSet
from ..models.families import mixers, resolve
from .edits import TARGET, Edit, Pass

if TYPE_CHECKING:
    from nnsight import TransformersModel


@dataclass(frozen=True)
class Outputs:
    """What every head of a model wrote while it read one prompt.

    Attributes:
        prompt: what was read.
        at: by the path of an output projection, its input: (tokens, columns), every head its slice.
    """

    prompt: str
    at: Mapping[str, Tensor]


@torch.no_grad()
def head_outputs(model: TransformersModel, prompt: str) -> Outputs:
    """Read ``prompt`` and keep what every head writes, in one forward pass.

    Raises:
        ValueError: an empty prompt.
    """
    if not prompt:
        raise ValueError("an empty prompt has no tokens to read")
    paths = [mixer.path for mixer in mixers(model)]
    with model.trace(prompt, use_cache=False):
        saved = nnsight.save([model.get(path).input for path in paths])
    return Outputs(prompt, {path: values[0] for path, values in zip(paths, saved)})


@dataclass(frozen=True)
class Patch:
    """At every token of the prompt, ``heads`` give what they gave in another run, ``source``.

    Token i gets what token i of the other prompt had, so both prompts must be of the same length: one word for another
    of one token, say. It is for one prompt a row: score one item at a time (:func:`~retrieval_heads.patching` does).
    """

    heads: HeadSet
    source: Outputs

    def edits(self, model: TransformersModel) -> list[Edit]:
        """One edit for each output projection that a head of the set feeds.

        Raises:
            ValueError: a head that the model does not have.
        """
        heads, edits = resolve(model, self.heads), []
        for mixer in mixers(model):
            here = [mixer.columns(h) for h in heads if (h.layer, h.kind) == (mixer.layer, mixer.kind)]
            if here:
                change = partial(_put, source=self.source.at[mixer.path], slices=here)
                edits.append(Edit(mixer.layer, mixer.path, change))
        return edits

    def describe(self) -> dict:
        return {"patch": [str(head) for head in self.heads], "from": self.source.prompt}


def _put(values: Tensor, here: Pass, source: Tensor, slices: list[slice]) -> Tensor:
    """``values`` (rows, tokens, columns) with the slices' columns from the source, as far as the prompt goes."""
    count = len(source)
    lengths = (here.stage <= TARGET).sum(1).tolist()
    if any(length != count for length in lengths):
        raise ValueError(
            f"the run to patch from has {count} tokens, the patched prompt {sorted(set(lengths))}; patching needs one "
            "item at a time, and two prompts that differ in words of equally many tokens"
        )
    values = values.clone()
    for columns in slices:
        values[:, :count, columns] = source[:, columns].to(values.device)
    return values
