"""What is on record about a trained model: how it was made, what that cost, and what it can do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd

from ..files import write_whole
from ..models.cache import LoadError
from ..models.catalog import CATALOG, Shipped


def record(name: str | os.PathLike[str]) -> dict[str, Any]:
    """The record of a model of the zoo, or of a folder that :func:`.train` wrote.

    In use::

        record("_build/zoo/llama")["evaluation"]["kv 16"]["value"]

    Returns:
        ``recipe`` (all that the training depends on), ``parameters``, ``tokens`` read and ``learned_tokens`` of
        them, ``seconds``, ``threads``, ``device``, ``versions``, ``date``, ``curve``, ``sha256`` of the weights,
        ``evaluation`` (:func:`.evaluate`).

    Raises:
        LoadError: there is none.
    """
    entry = CATALOG.get(os.fspath(name))
    folder = entry.source.folder if entry is not None and isinstance(entry.source, Shipped) else Path(name)
    path = folder / "record.json"
    if not path.is_file():
        raise LoadError(
            f"{path} does not exist: what retrieval-heads train has written has a record beside its weights; "
            "give the name or the folder of such a model"
        )
    return json.loads(path.read_text(encoding="utf-8"))


def write_record(folder: Path, found: dict[str, Any]) -> None:
    """Put a record beside its model, in place of one that is there."""
    write_whole(folder / "record.json", (json.dumps(found, indent=1) + "\n").encode())


def training_curve(name: str | os.PathLike[str]) -> pd.DataFrame:
    """How training went: one row a point and kind of text.

    Returns:
        ``model``; ``tokens`` read so far; ``loss``, in nats a learned token since the point before; ``kind`` of
        text (a function of :mod:`.mixture`) and ``right``, the share of its learned tokens that were found most
        probable.

    Raises:
        LoadError: the model has no record.
    """
    found = record(name)
    per_step = found["tokens"] / found["recipe"]["steps"]
    rows = [
        (found["recipe"]["name"], round(step * per_step), loss, kind, share)
        for step, loss, right in found["curve"]
        for kind, share in right.items()
    ]
    return pd.DataFrame(rows, columns=["model", "tokens", "loss", "kind", "right"])
