"""Answer scores of one condition, and what is read off them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from ..evidence.intervals import Interval, wilson


@dataclass(frozen=True)
class Answers:
    """What a model answers to some items, intact or under one intervention.

    Attributes:
        scores: (items, candidates) float64, each candidate's log-probability in nats; NaN where
            an item has fewer candidates than the widest.
        greedy: (items, candidates) bool, whether greedy generation writes that candidate.
        answer: (items,) int, the right candidate.
    """

    scores: np.ndarray
    greedy: np.ndarray
    answer: np.ndarray

    @property
    def predicted(self) -> np.ndarray:
        """(items,) the best-scored candidate; the first of equals."""
        return np.nanargmax(self.scores, axis=1)

    @property
    def correct(self) -> np.ndarray:
        """(items,) bool."""
        return self.predicted == self.answer

    @property
    def generated(self) -> np.ndarray:
        """(items,) bool, whether greedy generation begins with the right candidate (paper A, appendix A.5)."""
        return self.greedy[np.arange(len(self.answer)), self.answer]

    @property
    def answer_logprob(self) -> np.ndarray:
        """(items,) log-probability of the right candidate, in nats."""
        return self.scores[np.arange(len(self.answer)), self.answer]

    @property
    def log_odds(self) -> np.ndarray:
        """(items,) log-odds of the right candidate against all the others together, in nats."""
        others = np.where(np.isnan(self.scores), -np.inf, self.scores)
        others[np.arange(len(self.answer)), self.answer] = -np.inf
        return self.answer_logprob - logsumexp(others, axis=1)

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def chance(self) -> float:
        """The accuracy of guessing among the candidates."""
        return float((1 / np.isfinite(self.scores).sum(axis=1)).mean())

    def interval(self, level: float = 0.95) -> Interval:
        """Accuracy with its Wilson interval."""
        return wilson(int(self.correct.sum()), len(self.correct), level)

    def take(self, items: np.ndarray) -> Answers:
        """The same for some of the items, by index or mask."""
        return Answers(self.scores[items], self.greedy[items], self.answer[items])

    def join(self, other: Answers) -> Answers:
        """These answers, then those of ``other``."""
        width = max(self.scores.shape[1], other.scores.shape[1])
        wide = [[(0, 0), (0, width - answers.scores.shape[1])] for answers in (self, other)]
        return Answers(
            np.concatenate([np.pad(a.scores, w, constant_values=np.nan) for a, w in zip((self, other), wide)]),
            np.concatenate([np.pad(a.greedy, w) for a, w in zip((self, other), wide)]),
            np.concatenate([self.answer, other.answer]),
        )

    def __len__(self) -> int:
        return len(self.answer)
