"""Racing: samples go to the heads that they can still decide about.

Every head answers the first items. After each round, only the heads whose interval still reaches
the top ``k`` answer as many items again. Heads are compared by the mean change of the right
answer's log-odds against the other candidates: the same answer scores as accuracy, but continuous,
so that it separates heads with far fewer samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from ..tasks.items import Item
from .answers import Answers

FIRST_ROUND = 60  # items for every head
LEVEL = 0.99  # of the intervals that decide who stays

Score = Callable[[Sequence[Item], Sequence[int]], list[Answers]]


def race(items: Sequence[Item], runners: int, k: int, score: Score) -> list[Answers]:
    """Answers of the intact model and of every runner; a runner that drops out has answered fewer items.

    Args:
        score: given items and runners, what the intact model and then each runner answer to them.

    Returns:
        The intact model's answers to every item asked, then each runner's to its first items.

    Raises:
        ValueError: ``k`` is not between 1 and the number of runners.
    """
    if not 1 <= k <= runners:
        raise ValueError(f"a race for the top {k} needs at least {k} heads and k of at least 1, got {runners} heads")
    running, done = list(range(runners)), 0
    intact: Answers | None = None
    answers: list[Answers | None] = [None] * runners
    for end in rounds(items):
        fresh, *others = score(items[done:end], running)
        intact = fresh if intact is None else intact.join(fresh)
        for runner, more in zip(running, others, strict=True):
            known = answers[runner]
            answers[runner] = more if known is None else known.join(more)
        done = end
        harm = np.stack([intact.log_odds - answers[runner].log_odds for runner in running])
        running = [running[i] for i in can_reach_top(harm, k)]
    return [intact, *answers]


def rounds(items: Sequence[Item], first: int = FIRST_ROUND) -> list[int]:
    """Where each round ends: about ``first`` items, then twice as many, …; never inside a context's items."""
    boundaries = [i for i in range(1, len(items)) if not items[i].context or items[i].context != items[i - 1].context]
    ends, size = [], first
    while size < len(items):
        ends.append(next((b for b in boundaries if b >= size), len(items)))
        size = 2 * ends[-1]
    return sorted({*ends, len(items)})


def can_reach_top(harm: np.ndarray, k: int, level: float = LEVEL) -> list[int]:
    """The rows whose interval of the mean reaches the ``k``-th highest lower bound.

    Args:
        harm: (runners, items) the harm done to each item's answer.
    """
    if len(harm) <= k:
        return list(range(len(harm)))
    mean, error = harm.mean(axis=1), stats.sem(harm, axis=1) if harm.shape[1] > 1 else np.full(len(harm), np.inf)
    reach = error * stats.norm.ppf((1 + level) / 2)
    bar = np.sort(mean - reach)[-k]
    return [int(i) for i in np.flatnonzero(mean + reach >= bar)]
