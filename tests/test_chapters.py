"""Running chapters: what papermill writes, cleaned of what would differ tomorrow."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from papermill.exceptions import PapermillExecutionError

from retrieval_heads.chapters import execute, first_figure

CHAPTERS = sorted((Path(__file__).parents[1] / "book").glob("*.ipynb"))


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A repository with one small chapter."""
    cells = [
        nbformat.v4.new_code_cell("profile = 'cpu'\nseed = 0", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("import os\nprint(profile, seed, os.path.basename(os.getcwd()))"),
        nbformat.v4.new_code_cell("print(os.environ.get('RETRIEVAL_HEADS_RESULTS'))"),
        nbformat.v4.new_code_cell("assert seed != 13"),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    (tmp_path / "book").mkdir()
    nbformat.write(notebook, tmp_path / "book" / "small.ipynb")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_chapter_is_executed_with_its_parameters_and_stays_as_it_was(book):
    before = (book / "book" / "small.ipynb").read_bytes()
    path = execute("small", {"seed": 7})
    notebook = json.loads(path.read_text())
    assert path == Path("_build/runs/small.ipynb") and list(path.parent.iterdir()) == [path]
    assert "seed = 7" in "".join(notebook["cells"][1]["source"])  # the page says what it was run with
    assert "".join(notebook["cells"][2]["outputs"][0]["text"]) == "cpu 7 book\n"
    assert (book / "book" / "small.ipynb").read_bytes() == before


def test_a_run_of_your_own_keeps_its_measurements_apart(book, monkeypatch):
    def printed(parameters):
        cells = json.loads(execute("small", parameters).read_text())["cells"]
        return "".join(cells[-2]["outputs"][0]["text"]).strip()

    monkeypatch.delenv("RETRIEVAL_HEADS_RESULTS", raising=False)
    assert printed({"seed": 7}) == str(book / "_build/runs/results") and printed({}) == "None"
    monkeypatch.setenv("RETRIEVAL_HEADS_RESULTS", "chosen")
    assert printed({"seed": 7}) == "chosen"


def test_nothing_of_the_run_itself_is_stored(book):
    notebook = json.loads(execute("small", {}, book / "out.ipynb").read_text())
    assert len(notebook["cells"]) == 4 and [cell["id"] for cell in notebook["cells"]]
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert "version" not in notebook["metadata"]["language_info"]
    assert [cell["metadata"] for cell in notebook["cells"]] == [{"tags": ["parameters"]}, {}, {}, {}]
    assert str(book) not in json.dumps(notebook)
    assert execute("small", {}) == Path("_build/executed/small.ipynb")


def test_a_failing_cell_leaves_nothing(book):
    with pytest.raises(PapermillExecutionError, match="seed != 13"):
        execute("small", {"seed": 13}, book / "new" / "out.ipynb")
    assert list((book / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("chapter", "parameters", "message"),
    [
        ("smal", {}, "no chapter 'smal'.*it has small"),
        ("small", {"pears": 3}, "no parameter 'pears'; it has profile, seed"),
    ],
)
def test_unknown_chapters_and_parameters_are_refused_by_name(book, chapter, parameters, message):
    with pytest.raises(ValueError, match=message):
        execute(chapter, parameters)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_every_cell_of_a_chapter_has_been_executed(chapter):
    """nbval compares only cells with stored outputs: a chapter that was never run would pass."""
    cells = [cell for cell in json.loads(chapter.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells and [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))


def test_the_figure_of_the_readme_is_the_chapters(tmp_path):
    book = Path(__file__).parents[1] / "book"
    first_figure(str(book / "kv_retrieval.ipynb"), str(tmp_path / "figure.png"))
    assert (tmp_path / "figure.png").read_bytes() == (book / "_static" / "head_map.png").read_bytes(), "make outputs"
