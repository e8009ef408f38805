"""From a measurement and a criterion to a verdict; nothing else may pass one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from .claims import Claim, Criterion
from .intervals import Interval


class Verdict(StrEnum):
    """What a run says about a claim; from the best to the worst, and then what no run has said."""

    holds = "holds"
    in_direction = "holds in direction"
    undecided = "undecided"
    fails = "fails"
    absent = "not on this profile"


Measured = Mapping[str, Mapping[str, Interval]]  # by the measurement's name and the model


def judge(criterion: Criterion, found: Interval) -> Verdict:
    """The verdict on one measurement.

    The whole interval meets the threshold: holds. It straddles it, or there are too few samples: undecided. It misses
    it entirely: holds in direction if the whole interval still lies beyond the weaker threshold, fails otherwise.

    >>> rule = Criterion(measured="accuracy lost", at_least=0.3, direction=0.0, samples=100)
    >>> [str(judge(rule, Interval(v, v - 0.1, v + 0.1, 100))) for v in (0.5, 0.35, 0.15, 0.05)]
    ['holds', 'undecided', 'holds in direction', 'fails']
    """
    if found.n < criterion.samples:
        return Verdict.undecided
    worst, best = sorted((criterion.sign * found.low, criterion.sign * found.high))
    threshold = criterion.sign * criterion.threshold
    if worst >= threshold:
        return Verdict.holds
    if best >= threshold:
        return Verdict.undecided
    if criterion.direction is not None and worst > criterion.sign * criterion.direction:
        return Verdict.in_direction
    return Verdict.fails


def decide(claim: Claim, measured: Measured, profile: str) -> Verdict:
    """The verdict on a claim: the worst of its criteria, over all models measured.

    A criterion of which nothing was measured leaves the claim undecided, never better.
    """
    if claim.why_not(profile) or not any(rule.measured in measured for rule in claim.criteria):
        return Verdict.absent
    verdicts = [
        verdict
        for rule in claim.criteria
        for verdict in (
            [judge(rule, found) for found in measured.get(rule.measured, {}).values()] or [Verdict.undecided]
        )
    ]
    return max(verdicts, key=list(Verdict).index)
