"""How many copies of a tree one pass holds: found from the memory, halved when that was too many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from .layout import lay_out
from .tree import TokenTree

if TYPE_CHECKING:
    from nnsight import TransformersModel

Result = TypeVar("Result")

# Beyond this many tokens a pass is no faster, only larger (benchmarks/knockout.py).
ENOUGH_TOKENS = {"cpu": 2_048, "cuda": 65_536}
SHARE_OF_MEMORY = 0.4


def copies_per_pass(model: TransformersModel, tree: TokenTree, packed: bool) -> int:
    """Copies of ``tree`` that fit the free memory, and no more than make a pass efficient; at least 1."""
    device = model.device.type
    layout = lay_out(tree, packed)
    tokens = layout.ids.numel()
    config = model.config
    per_token = 6 * config.hidden_size + 3 * (getattr(config, "intermediate_size", None) or 2 * config.hidden_size)
    logits = 2 * len(layout.ids) * len(layout.keep) * config.vocab_size
    bytes_per_copy = 4 * (tokens * per_token + logits)
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
    fits = int(SHARE_OF_MEMORY * free / bytes_per_copy)
    return max(1, min(fits, enough_tokens(model) // tokens))


def enough_tokens(model: TransformersModel) -> int:
    """Tokens that make a pass on the model's device efficient."""
    return ENOUGH_TOKENS.get(model.device.type, ENOUGH_TOKENS["cuda"])


def halving(run: Callable[[Sequence[Any]], Result], work: Sequence[Any]) -> Iterator[Result]:
    """``run(work)``, or where that runs out of memory, on its halves; a result is never computed twice.

    Raises:
        MemoryError: a single piece of work does not fit the memory.
    """
    try:
        yield run(work)
        return
    except RuntimeError as error:
        if not should_reduce_batch_size(error):
            raise
        if len(work) == 1:
            raise MemoryError(
                "out of memory with a single copy of the prompt; use shorter prompts, a smaller dtype or a larger card"
            ) from error
    clear_device_cache(garbage_collection=True)
    middle = len(work) // 2
    yield from halving(run, work[:middle])
    yield from halving(run, work[middle:])
