"""What the chapters measured: one file a profile, which other programs can read."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from filelock import FileLock

from ..files import write_whole
from .claims import PROFILES, find_root, read_claims
from .intervals import Interval
from .judge import Measured, Verdict, decide, judge

if TYPE_CHECKING:
    from nnsight import TransformersModel

FOLDER = "RETRIEVAL_HEADS_RESULTS"  # environment variable: where results go; default results/ beside claims.yml


class Evidence:
    """What one chapter measures, as it measures it.

    In use::

        evidence = rh.Evidence("kv_retrieval", profile="cpu", seed=0)
        evidence.record("facts lost without the top three heads", interval, model)
        evidence.verdicts()

    Every :meth:`record` writes ``results/PROFILE.json`` anew, this chapter's part replaced and nothing else.

    Args:
        chapter: its file's name.
        profile: cpu, gpu or paper.

    Raises:
        ValueError: an unknown profile, or no book here.
    """

    def __init__(self, chapter: str, profile: str = "cpu", seed: int = 0) -> None:
        if profile not in PROFILES:
            raise ValueError(f"profile must be one of {', '.join(PROFILES)}, got {profile!r}")
        self.chapter, self.profile, self.seed = chapter, profile, seed
        self.path = results_folder() / f"{profile}.json"
        self.claims = {name: claim for name, claim in read_claims().items() if claim.chapter == chapter}
        self.measured: dict[str, dict[str, Interval]] = {}
        self._commit = _commit()
        self._described: list[tuple[TransformersModel, dict[str, Any]]] = []

    def record(self, name: str, found: Interval | tuple | float, model: TransformersModel) -> None:
        """A measurement of this chapter.

        Args:
            name: what was measured; criteria in ``claims.yml`` ask for it by this name.
            found: with its interval and sample size; a bare number is exact (a count of bytes, say).

        Raises:
            ValueError: an interval that does not contain its value.
        """
        found = Interval(*found) if isinstance(found, tuple) else Interval(float(found), float(found), float(found), 1)
        found = Interval(*map(float, found[:3]), int(found.n))
        if not found.low - 1e-9 <= found.value <= found.high + 1e-9:  # resampled means carry rounding
            raise ValueError(f"{name!r}: {found} does not contain its value")
        self.measured.setdefault(name, {})[self._describe(model)["name"]] = found
        self._write()

    def verdicts(self) -> pd.DataFrame:
        """The chapter's claims, decided: one row a criterion and model.

        Columns: ``claim``, ``model``, ``measured`` (name), ``found`` (with its interval), ``criterion``, ``verdict``.

        Raises:
            ValueError: the chapter has not measured what a criterion asks for.
        """
        rows = []
        for claim in self.claims.values():
            if reason := claim.why_not(self.profile):
                rows.append((claim.id, "", "", reason, "", Verdict.absent))
                continue
            for rule in claim.criteria:
                if rule.measured not in self.measured:
                    raise ValueError(
                        f"claim {claim.id} is decided by {rule.measured!r}, which {self.chapter} has not recorded; "
                        f"it has {', '.join(map(repr, self.measured)) or 'nothing'}"
                    )
                for model, found in self.measured[rule.measured].items():
                    rows.append((claim.id, model, rule.measured, str(found), rule.comparison, judge(rule, found)))
        columns = ["claim", "model", "measured", "found", "criterion", "verdict"]
        return pd.DataFrame([(*row[:-1], str(row[-1])) for row in rows], columns=columns).set_index(["claim", "model"])

    def summary(self) -> pd.DataFrame:
        """One row a claim: what it says, what the paper reports, and the verdict here."""
        rows = [
            (name, claim.says, claim.reported or "—", str(decide(claim, self.measured, self.profile)))
            for name, claim in self.claims.items()
        ]
        return pd.DataFrame(rows, columns=["claim", "says", "the paper", "here"]).set_index("claim")

    def _describe(self, model: TransformersModel) -> dict[str, Any]:
        """What is said about the model; worked out once, because its fingerprint reads all weights."""
        from ..models.loading import describe

        for known, told in self._described:
            if known is model:
                return told
        self._described.append((model, describe(model)))
        return self._described[-1][1]

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):  # another chapter may run beside this one
            everything = _read(self.path)
            everything[self.chapter] = {
                "seed": self.seed,
                "commit": self._commit,
                "models": {told["name"]: told for _, told in self._described},
                "measurements": as_data(self.measured),
            }
            text = json.dumps(dict(sorted(everything.items())), indent=1, ensure_ascii=False)
            write_whole(self.path, (text + "\n").encode())


def results_folder() -> Path:
    """Where results are kept: ``RETRIEVAL_HEADS_RESULTS`` of the environment, or ``results/`` of the book."""
    chosen = os.environ.get(FOLDER)
    return Path(chosen) if chosen else find_root() / "results"


def as_data(measured: Measured) -> dict[str, dict[str, dict[str, float]]]:
    """Measurements as JSON data."""
    return {name: {model: i._asdict() for model, i in found.items()} for name, found in measured.items()}


def read_measurements(profile: str) -> dict[str, Measured]:
    """By chapter, the measurements of a profile, as :func:`decide` takes them; empty if there was no run."""
    everything = _read(results_folder() / f"{profile}.json")
    return {
        chapter: {name: {m: Interval(**i) for m, i in found.items()} for name, found in part["measurements"].items()}
        for chapter, part in everything.items()
    }


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _commit() -> str | None:
    """The code's commit, marked ``-dirty`` if files differ from it; None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=find_root(), capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
