"""Many processes, one result: each takes every n-th unit, and all end with all of them.

Started by ``accelerate launch``, on the cards of one machine or of several, or on CPUs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

Thing = TypeVar("Thing")


def _state() -> Any:
    """accelerate's view of the processes, or None where there is only this one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    from accelerate import PartialState

    return PartialState()


def mine(work: Sequence[Thing]) -> list[Thing]:
    """This process's share of the work. Neighbouring units, which cost about the same, go to different ones."""
    state = _state()
    return list(work) if state is None else list(work[state.process_index :: state.num_processes])


def everyones(results: list[Thing]) -> list[Thing]:
    """The results of all processes, in each of them."""
    if _state() is None:
        return results
    from accelerate.utils import gather_object

    return gather_object(results)


def the_firsts(value: Thing) -> Thing:
    """The first process's value, in each of them."""
    return everyones([value])[0]


def is_first() -> bool:
    """Whether this process is the one that talks and writes."""
    state = _state()
    return state is None or state.is_main_process


def wait() -> None:
    """Go on when all processes have come here."""
    state = _state()
    if state is not None:
        state.wait_for_everyone()
