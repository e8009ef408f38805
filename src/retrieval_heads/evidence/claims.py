"""The claims of the papers and what decides each: ``claims.yml``, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

FILE = "claims.yml"
Profile = Literal["cpu", "gpu", "paper"]
PROFILES: tuple[Profile, ...] = get_args(Profile)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Criterion(_Strict):
    """A comparison that decides a claim, written before the run.

    Attributes:
        measured: the name under which a chapter records the measurement.
        at_least, at_most: what its whole interval must satisfy; one of the two.
        direction: a weaker threshold on the same side, usually no effect at all; a measurement that misses the
            threshold and still lies beyond this one holds in direction.
        samples: the fewest samples that count.
    """

    measured: str
    at_least: float | None = None
    at_most: float | None = None
    direction: float | None = None
    samples: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _one_comparison(self) -> Criterion:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"{self.measured!r} needs one of at_least and at_most")
        weaker = self.direction is None or self.sign * self.direction < self.sign * self.threshold
        if not weaker:
            raise ValueError(f"{self.measured!r}: direction {self.direction} is not weaker than {self.comparison}")
        return self

    @property
    def sign(self) -> int:
        """1 if more is better, -1 if less is."""
        return 1 if self.at_least is not None else -1

    @property
    def threshold(self) -> float:
        return self.at_least if self.at_least is not None else self.at_most  # type: ignore[return-value]

    @property
    def comparison(self) -> str:
        """The criterion in signs.

        >>> Criterion(measured="facts without attention", at_least=0.9).comparison
        '≥ 0.9'
        """
        return f"{'≥' if self.sign > 0 else '≤'} {self.threshold:g}"


class Claim(_Strict):
    """A claim of a paper.

    Attributes:
        id: the paper's letter and a number, like A05.
        where: section, figure or table.
        says: the claim, in this book's words.
        reported: the paper's value, and on which model; None where the paper gives none.
        chapter: the chapter that decides it.
        criteria: all must hold, on every model that the chapter measures.
        open: instead of these two, why nothing decides it.
        not_on: for a profile that cannot decide it, why not.
    """

    id: Annotated[str, Field(pattern=r"^[ABC]\d\d$")]
    where: str
    says: str
    reported: str | None = None
    chapter: str | None = None
    criteria: tuple[Criterion, ...] = ()
    open: str | None = None
    not_on: dict[Profile, str] = {}

    @model_validator(mode="after")
    def _decidable(self) -> Claim:
        if (self.chapter is None) != (not self.criteria):
            raise ValueError("a claim with criteria needs its chapter, and a chapter its criteria")
        if (self.open is None) != bool(self.criteria):
            raise ValueError("a claim has criteria, or says under open why it has none, not both")
        return self

    def why_not(self, profile: str) -> str | None:
        """Why a run of that profile says nothing about it; None if it does."""
        return self.open or self.not_on.get(profile)  # type: ignore[call-overload]


def find_root(start: Path | None = None) -> Path:
    """The folder of the book: the nearest one, from ``start`` (default: here) upward, that has a ``claims.yml``.

    Raises:
        ValueError: there is none.
    """
    start = (start or Path.cwd()).absolute()
    for folder in (start, *start.parents):
        if (folder / FILE).is_file():
            return folder
    raise ValueError(f"no {FILE} in {start} or above; run this in the book's repository")


def read_claims(path: Path | None = None) -> dict[str, Claim]:
    """All claims by id, in the file's order.

    Raises:
        ValueError: the file breaks the schema; the message says where and how.
    """
    path = path or find_root() / FILE
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(entries, list):
        raise ValueError(f"{path} must be a list of claims")
    claims: dict[str, Claim] = {}
    for position, entry in enumerate(entries):
        name = entry.get("id", f"number {position + 1}") if isinstance(entry, dict) else f"number {position + 1}"
        try:
            claim = Claim.model_validate(entry)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'claim'}: {e['msg']}" for e in error.errors())
            raise ValueError(f"{path}, claim {name}: {wrong}") from error
        if claim.id in claims:
            raise ValueError(f"{path}: claim {claim.id} stands there twice")
        claims[claim.id] = claim
    return claims
