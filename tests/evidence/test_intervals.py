from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from retrieval_heads.evidence.intervals import Interval, bootstrap_mean, difference, share_of, wilson


@given(st.integers(1, 2000), st.data())
def test_wilson_equals_its_formula(n, data):
    k = data.draw(st.integers(0, n))
    z = stats.norm.ppf(0.975)
    centre = (k + z * z / 2) / (n + z * z)
    reach = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    value, low, high, size = wilson(k, n)
    assert (value, size) == (k / n, n)
    assert low == pytest.approx(max(0, centre - reach), abs=1e-9)
    assert high == pytest.approx(min(1, centre + reach), abs=1e-9)


def test_wilson_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = [low <= 0.8 <= high for _, low, high, _ in (wilson(int(k), 60) for k in rng.binomial(60, 0.8, 2000))]
    assert 0.93 < np.mean(hits) < 0.97


def test_the_paired_bootstrap_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    samples = rng.choice([-1, 0, 1], p=[0.1, 0.6, 0.3], size=(600, 120))
    hits = [low <= 0.2 <= high for _, low, high, _ in (bootstrap_mean(s) for s in samples)]
    assert 0.92 < np.mean(hits) < 0.98


def test_the_bootstrap_has_the_law_of_resampling():
    values = np.random.default_rng(2).normal(size=50)
    ours = bootstrap_mean(values, resamples=20_000)
    scipys = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=3).confidence_interval
    assert ours.low == pytest.approx(scipys.low, abs=0.01)
    assert ours.high == pytest.approx(scipys.high, abs=0.01)


def test_the_bootstrap_repeats_itself():
    assert bootstrap_mean(np.arange(9.0)) == bootstrap_mean(np.arange(9.0))


@pytest.mark.parametrize("arguments", [(0, 0), (3, 2), (-1, 5)])
def test_impossible_counts_are_refused(arguments):
    with pytest.raises(ValueError, match=r"successes=.*n="):
        wilson(*arguments)


@pytest.mark.parametrize("values", [[], [[1.0]]])
def test_nothing_to_resample_is_refused(values):
    with pytest.raises(ValueError, match="at least one number"):
        bootstrap_mean(values)


def test_a_difference_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(4)
    pairs = zip(rng.binomial(80, 0.8, 2000), rng.binomial(50, 0.3, 2000))
    found = [difference(wilson(int(a), 80), wilson(int(b), 50)) for a, b in pairs]
    assert 0.93 < np.mean([low <= 0.5 <= high for _, low, high, _ in found]) < 0.98


def test_the_opposite_of_nothing_prints_as_nothing():
    assert str(-Interval(0.0, 0.0, 0.0, 7)) == "0.000 [0.000, 0.000] (n=7)"


def test_a_share_of_a_whole():
    assert share_of(Interval(0.4, 0.3, 0.5, 7), 0.5) == Interval(0.8, 0.6, 1.0, 7)
    with pytest.raises(ValueError, match="positive whole, got 0"):
        share_of(Interval(0.4, 0.3, 0.5, 7), 0)
