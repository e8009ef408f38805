"""A verdict follows from the interval, the threshold and the direction, and from nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_heads.evidence.claims import Claim, Criterion
from retrieval_heads.evidence.intervals import Interval
from retrieval_heads.evidence.judge import Verdict, decide, judge

MORE = Criterion(measured="m", at_least=0.5, direction=0.0, samples=10)
LESS = Criterion(measured="m", at_most=0.5, direction=0.9, samples=10)
numbers = st.floats(-2, 2).map(lambda x: round(x, 3))
intervals = st.tuples(numbers, numbers, numbers).map(sorted).map(lambda s: Interval(s[1], s[0], s[2], 10))


def interval(low, high, n=10):
    return Interval((low + high) / 2, low, high, n)


@pytest.mark.parametrize(
    ("rule", "low", "high", "verdict"),
    [
        (MORE, 0.5, 0.6, Verdict.holds),
        (MORE, 0.4, 0.6, Verdict.undecided),
        (MORE, -0.1, 0.6, Verdict.undecided),
        (MORE, 0.1, 0.4, Verdict.in_direction),
        (MORE, 0.0, 0.4, Verdict.fails),
        (MORE, -0.2, 0.4, Verdict.fails),
        (LESS, 0.1, 0.5, Verdict.holds),
        (LESS, 0.4, 0.6, Verdict.undecided),
        (LESS, 0.6, 0.8, Verdict.in_direction),
        (LESS, 0.6, 0.9, Verdict.fails),
    ],
)
def test_where_the_interval_lies_decides(rule, low, high, verdict):
    assert judge(rule, interval(low, high)) is verdict


def test_without_a_direction_a_miss_fails():
    assert judge(Criterion(measured="m", at_least=0.5), interval(0.4, 0.45)) is Verdict.fails


def test_too_few_samples_decide_nothing():
    assert judge(MORE, interval(0.8, 0.9, n=9)) is Verdict.undecided


@given(intervals)
def test_at_most_is_at_least_in_the_mirror(found):
    mirrored = Interval(-found.value, -found.high, -found.low, found.n)
    rule = Criterion(measured="m", at_most=-0.5, direction=-0.1)
    assert judge(Criterion(measured="m", at_least=0.5, direction=0.1), found) is judge(rule, mirrored)


@given(intervals, st.floats(0, 1))
def test_a_better_measurement_never_gets_a_worse_verdict_on_its_side(found, step):
    better = Interval(found.value + step, found.low + step, found.high + step, found.n)
    before, after = judge(MORE, found), judge(MORE, better)
    ranks = [Verdict.fails, Verdict.in_direction, Verdict.undecided, Verdict.holds]
    if {before, after} <= {Verdict.fails, Verdict.in_direction, Verdict.holds}:
        assert ranks.index(after) >= ranks.index(before)


def claim(*rules, **options):
    return Claim(id="A01", where="x", says="y", chapter="c", criteria=rules, **options)


def test_a_claim_is_as_good_as_its_worst_part_and_model():
    good, poor = interval(0.6, 0.7), interval(0.1, 0.2)
    assert decide(claim(MORE), {"m": {"a": good, "b": good}}, "cpu") is Verdict.holds
    assert decide(claim(MORE), {"m": {"a": good, "b": poor}}, "cpu") is Verdict.in_direction


def test_a_part_that_was_not_measured_leaves_it_undecided():
    other = Criterion(measured="other", at_least=0)
    assert decide(claim(MORE, other), {"m": {"a": interval(0.6, 0.7)}}, "cpu") is Verdict.undecided


def test_nothing_measured_or_a_reason_why_not():
    assert decide(claim(MORE), {}, "cpu") is Verdict.absent
    found = {"m": {"a": interval(0.6, 0.7)}}
    assert decide(claim(MORE, not_on={"cpu": "too large"}), found, "cpu") is Verdict.absent
    assert decide(claim(MORE, not_on={"cpu": "too large"}), found, "gpu") is Verdict.holds
