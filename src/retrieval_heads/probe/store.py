"""Finished units on disk: a run that was killed goes on where it stopped."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_whole

RUN = "run.json"


def digest(value: Any) -> str:
    """16 hexadecimal digits of JSON data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class Store:
    """One folder for one run. Each unit is a file, written whole or not at all.

    Args:
        folder: made when missing. What it holds of another run is deleted, and stderr says why.
        key: what the results depend on: model, items, interventions, versions. JSON data.
        plan: how the work is cut. A continued run keeps the plan that it began with, because the
            last digits of a float depend on what is computed together.
    """

    def __init__(self, folder: Path, key: dict, plan: dict) -> None:
        self.folder, self.plan = folder, plan
        folder.mkdir(parents=True, exist_ok=True)
        before = self._read()
        if before is not None and before["key"] == key:
            self.plan = before["plan"]
            return
        if before is not None:
            changed = [name for name in key.keys() | before["key"].keys() if key.get(name) != before["key"].get(name)]
            what = "; ".join(f"{n} was {before['key'].get(n)!r}, is {key.get(n)!r}" for n in sorted(changed))
            print(f"starting anew in {folder}: {what}", file=sys.stderr)
        for unit in folder.glob("*.npz"):
            unit.unlink()
        write_whole(folder / RUN, json.dumps({"key": key, "plan": plan}, sort_keys=True, indent=1).encode())

    def get(self, number: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The arrays of a finished unit, or None. A file that cannot be read counts as unfinished."""
        try:
            with np.load(self._path(number), allow_pickle=False) as arrays:
                return arrays["scores"], arrays["greedy"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def put(self, number: int, scores: np.ndarray, greedy: np.ndarray) -> None:
        """Keep a finished unit."""
        buffer = io.BytesIO()
        np.savez(buffer, scores=scores, greedy=greedy)
        write_whole(self._path(number), buffer.getvalue())

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npz"

    def _read(self) -> dict | None:
        try:
            return json.loads((self.folder / RUN).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
