"""What a model writes: greedy answers to many prompts at once, under an intervention that knows where prompts end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..interventions.edits import GENERATED, PROMPT, TARGET, Edit, Intervention, Pass, perform, sites, unapplied
from ..progress import bar
from ..tasks.items import Item
from .batching import enough_tokens
from .encoding import Encoded, encode
from .engine import INTACT

if TYPE_CHECKING:
    from nnsight import TransformersModel


def write(
    model: TransformersModel,
    items: Sequence[Item],
    intervention: Intervention = INTACT,
    *,
    tokens: int = 8,
    progress: bool | None = None,
) -> list[str]:
    """What greedy decoding writes after each prompt, up to ``tokens`` tokens or the end of the text.

    The same as a generation with a cache. Here every step reads the whole text anew: what is prompt, target and
    answer, and which tokens are marked, is known in each, for prompts of any length side by side.

    Args:
        progress: show a bar; None shows it on a terminal only.

    Raises:
        ValueError: as :func:`.score`.
    """
    if not items:
        raise ValueError("there are no items to answer; make the task larger")
    bare, applied = unapplied(model)
    edits = [edit for each in (*applied, intervention) for edit in each.edits(bare)]
    encoded = encode(items, model.tokenizer)
    longest = max(len(item.prompt) for item in encoded) + tokens
    at_once = max(1, enough_tokens(model) // longest)
    found = []
    for start in bar(range(0, len(encoded), at_once), progress=progress, desc="writing", unit="pass"):
        found += _write(bare, encoded[start : start + at_once], edits, tokens)
    return [model.tokenizer.decode(text, skip_special_tokens=True) for text in found]


@torch.no_grad()
def _write(model: TransformersModel, items: Sequence[Encoded], edits: list[Edit], tokens: int) -> list[list[int]]:
    """The new tokens of each item, those of one batch."""
    places = sites(model, [edits])
    written: list[list[int]] = [[] for _ in items]
    going = list(range(len(items)))
    for _ in range(tokens):
        texts = [[*items[row].prompt, *written[row]] for row in going]
        shape = len(texts), max(map(len, texts))
        ids, stages, marks = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
        stages += GENERATED
        for line, (row, text) in enumerate(zip(going, texts)):
            prompt = len(items[row].prompt)
            ids[line, : len(text)] = torch.tensor(text)
            stages[line, :prompt] = PROMPT
            stages[line, prompt - 1] = TARGET
            marks[line, :prompt] = torch.tensor(items[row].marks)
        keep, kept = torch.tensor([len(text) - 1 for text in texts]).unique(return_inverse=True)
        with model.trace(input_ids=ids, logits_to_keep=keep, use_cache=False):
            perform(model, places, Pass(stages, marks=marks))
            logits = model.output.logits.save()
        for row, token in zip(going, logits[range(len(going)), kept.to(logits.device)].argmax(-1).tolist()):
            written[row].append(token)
        going = [row for row in going if written[row][-1] != model.tokenizer.eos_token_id]
        if not going:
            break
    return written
