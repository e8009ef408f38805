"""Intervals: every accuracy, loss and difference of the book carries one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """An estimate with its 95 % interval (or another level) and its number of samples."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.n})"

    def __neg__(self) -> Interval:
        return Interval(0.0 - self.value, 0.0 - self.high, 0.0 - self.low, self.n)  # no -0.0, which prints as -0.000


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """A proportion with Wilson's score interval.

    >>> print(wilson(8, 10))
    0.800 [0.490, 0.943] (n=10)

    Raises:
        ValueError: no samples, or more successes than samples.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"a proportion needs 0 <= successes <= n and n >= 1, got successes={successes}, n={n}")
    low, high = stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    return Interval(successes / n, float(low), float(high), n)


def bootstrap_mean(values: np.ndarray, level: float = 0.95, seed: int = 0, resamples: int = 2000) -> Interval:
    """A mean with its percentile bootstrap interval.

    Given paired differences (one condition minus the other, sample by sample) this is the
    paired bootstrap of the difference.

    Args:
        values: (n,) one number a sample.

    Raises:
        ValueError: no samples.
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"the bootstrap needs a list of at least one number, got shape {values.shape}")
    # How often each distinct value is drawn is multinomial: the same law, far fewer numbers to draw.
    distinct, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(values), counts / len(values), size=resamples)
    means = drawn @ distinct / len(values)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values.mean()), float(low), float(high), len(values))


def difference(a: Interval, b: Interval) -> Interval:
    """``a`` less ``b``, two independent estimates, by squares of the distances to their limits.

    Newcombe, 1998, Statistics in Medicine 17, method 10. Its sample size is the smaller one.

    >>> print(difference(wilson(56, 70), wilson(48, 80)))
    0.200 [0.052, 0.334] (n=70)
    """
    value = a.value - b.value
    below, above = np.hypot(a.value - a.low, b.high - b.value), np.hypot(a.high - a.value, b.value - b.low)
    return Interval(value, float(value - below), float(value + above), min(a.n, b.n))


def share_of(a: Interval, whole: float) -> Interval:
    """An estimate as a share of a number that is taken as known.

    Raises:
        ValueError: the number is not positive.
    """
    if whole <= 0:
        raise ValueError(f"a share needs a positive whole, got {whole}")
    return Interval(a.value / whole, a.low / whole, a.high / whole, a.n)
