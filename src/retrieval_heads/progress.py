"""The progress bar of everything that takes longer than a few seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def bar(work: Iterable | None = None, *, progress: bool | None, **options: Any) -> tqdm:
    """A bar over ``work``; ``progress`` None shows it on a terminal only. Other options are tqdm's."""
    return tqdm(work, disable=None if progress is None else not progress, **options)
