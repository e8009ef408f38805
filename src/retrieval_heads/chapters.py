"""Running a chapter: papermill executes a copy, which is then cleaned of what differs between runs."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

from .evidence.measurements import FOLDER
from .files import write_whole

BOOK = Path("book")
EXECUTED = Path("_build/executed")
RUNS = Path("_build/runs")


def execute(chapter: str, parameters: dict[str, Any], output: Path | None = None) -> Path:
    """Execute ``book/CHAPTER.ipynb`` from top to bottom and write the notebook with its outputs.

    Args:
        parameters: values for the chapter's cell tagged ``parameters``.
        output: where to; None writes ``_build/executed/CHAPTER.ipynb``, or ``_build/runs/CHAPTER.ipynb`` if there
            are parameters: a run of your own is not taken for the book's, and what it measures goes into
            ``_build/runs/results`` (unless the environment has ``RETRIEVAL_HEADS_RESULTS``). The chapter itself is
            never changed.

    Raises:
        ValueError: there is no such chapter here, or it has no parameter of that name.
        papermill.PapermillExecutionError: a cell failed; nothing is written.
    """
    import papermill

    source = BOOK / f"{chapter}.ipynb"
    if not source.is_file():
        there = ", ".join(sorted(path.stem for path in BOOK.glob("*.ipynb"))) or "no chapters"
        raise ValueError(
            f"no chapter {chapter!r} in {BOOK.absolute()}: it has {there}; run this in the repository's root"
        )
    known = papermill.inspect_notebook(str(source))
    for name in parameters:
        if name not in known:
            raise ValueError(f"chapter {chapter!r} has no parameter {name!r}; it has {', '.join(known) or 'none'}")
    output = output or (RUNS if parameters else EXECUTED) / source.name
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_suffix(".running.ipynb")
    own = {FOLDER: str((RUNS / "results").absolute())} if parameters and FOLDER not in os.environ else {}
    os.environ |= own  # the kernel inherits it
    try:
        papermill.execute_notebook(
            source,
            unfinished,
            parameters=parameters,
            cwd=str(BOOK),
            extra_arguments=["--log-level=ERROR"],  # the kernel's own notices are not outputs
        )
        clean(unfinished)
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
        for name in own:
            del os.environ[name]
    return output


def parse_parameters(texts: list[str]) -> dict[str, Any]:
    """Parameters written ``NAME=VALUE``; a value that is JSON is read as such, any other is a string.

    >>> parse_parameters(["seed=3", "model_name=smollm2-135m"])
    {'seed': 3, 'model_name': 'smollm2-135m'}

    Raises:
        ValueError: a text without ``=``.
    """
    parameters = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not a parameter; write NAME=VALUE, like seed=3")
        try:
            parameters[name] = json.loads(value)
        except ValueError:
            parameters[name] = value
    return parameters


def clean(path: Path) -> None:
    """Drop what papermill adds and what changes from run to run or machine to machine: times, paths, patch versions."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["metadata"].pop("papermill", None)
    notebook["metadata"].get("language_info", {}).pop("version", None)
    for cell in notebook["cells"]:
        metadata = cell["metadata"]
        tags = metadata.get("tags", [])
        for name in ("papermill", "execution", *(["tags"] if not tags else [])):
            metadata.pop(name, None)
    write_whole(path, (json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode())


def first_figure(notebook: str, picture: str) -> None:
    """Write the first figure that ``notebook`` stores to the file ``picture``."""
    cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
    figures = [
        output["data"]["image/png"]
        for cell in cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    write_whole(Path(picture), base64.b64decode(figures[0]))
