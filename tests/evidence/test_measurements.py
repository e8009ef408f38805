"""Results are merged chapter by chapter; verdicts come from them and from claims.yml."""

import json

import pytest
from typer.testing import CliRunner

import retrieval_heads as rh
from retrieval_heads.cli import app
from retrieval_heads.evidence.measurements import FOLDER, Evidence, read_measurements
from retrieval_heads.evidence.scorecard import Scorecard

CLAIMS = """
- id: A01
  where: §1
  says: More <b>is</b> more.
  chapter: one
  criteria: [{measured: gain, at_least: 0.5, direction: 0, samples: 10}]
- {id: B01, where: §2, says: Less., chapter: two, criteria: [{measured: loss, at_most: 0.1}], not_on: {gpu: too small}}
- {id: C01, where: §3, says: Open., open: nobody knows}
"""


@pytest.fixture
def book(tmp_path, monkeypatch):
    (tmp_path / "claims.yml").write_text(CLAIMS)
    (tmp_path / "book").mkdir()
    monkeypatch.chdir(tmp_path / "book")
    monkeypatch.delenv(FOLDER, raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def model(tiny_llama_folder):
    return rh.load(str(tiny_llama_folder))


def test_a_measurement_is_written_judged_and_read_again(book, model):
    evidence = Evidence("one", seed=3)
    evidence.record("gain", rh.Interval(0.7, 0.6, 0.8, 20), model)
    table = evidence.verdicts()
    assert list(table.verdict) == ["holds"] and list(table.criterion) == ["≥ 0.5"]
    assert list(evidence.summary().here) == ["holds"]
    stored = json.loads((book / "results/cpu.json").read_text())
    assert stored["one"]["seed"] == 3 and stored["one"]["measurements"]["gain"]
    ((name, found),) = read_measurements("cpu")["one"]["gain"].items()
    assert found == rh.Interval(0.7, 0.6, 0.8, 20) and stored["one"]["models"][name]["fingerprint"]


def test_chapters_and_profiles_leave_each_other_alone_and_a_rerun_replaces(book, model):
    Evidence("one").record("old name", 1.0, model)
    Evidence("two").record("loss", 0.05, model)
    Evidence("two", profile="gpu").record("loss", 0.5, model)
    Evidence("one").record("gain", rh.Interval(0.7, 0.6, 0.8, 20), model)
    cpu = read_measurements("cpu")
    assert set(cpu["one"]) == {"gain"} and set(cpu) == {"one", "two"}
    assert set(read_measurements("gpu")) == {"two"} and read_measurements("paper") == {}


def test_results_go_where_the_environment_says(book, model, monkeypatch):
    monkeypatch.setenv(FOLDER, str(book / "elsewhere"))
    Evidence("one").record("gain", 1.0, model)
    assert (book / "elsewhere/cpu.json").is_file() and not (book / "results").exists()


def test_what_cannot_be(book, model):
    with pytest.raises(ValueError, match="profile must be one of cpu, gpu, paper, got 'tpu'"):
        Evidence("one", profile="tpu")
    evidence = Evidence("one")
    with pytest.raises(ValueError, match="does not contain its value"):
        evidence.record("gain", rh.Interval(0.5, 0.6, 0.8, 20), model)
    evidence.record("gian", 1.0, model)
    with pytest.raises(ValueError, match="A01 is decided by 'gain', which one has not recorded; it has 'gian'"):
        evidence.verdicts()


def test_a_claim_that_this_profile_cannot_decide_says_why(book, model):
    evidence = Evidence("two", profile="gpu")
    evidence.record("loss", 0.05, model)
    assert list(evidence.verdicts().verdict) == ["not on this profile"]
    assert list(evidence.verdicts().found) == ["too small"]


def test_the_scorecard_counts_links_and_gives_reasons(book, model):
    Evidence("one").record("gain", rh.Interval(0.3, 0.2, 0.4, 20), model)
    card = Scorecard()
    assert card.counts("cpu") == {
        "holds": 0, "holds in direction": 1, "undecided": 0, "fails": 0, "not on this profile": 2,
    }  # fmt: skip
    html = card._repr_html_()
    assert 'href="one.html#what-the-paper-reports-and-what-we-see"' in html
    assert "More &lt;b&gt;is&lt;/b&gt; more." in html and "<b>is" not in html
    assert "too small" in html and "nobody knows" in html and "no run of the cpu profile is stored" in html


def test_the_command_prints_every_claim_and_json(book, model):
    Evidence("one").record("gain", rh.Interval(0.7, 0.6, 0.8, 20), model)
    printed = CliRunner().invoke(app, ["claims"])
    assert printed.exit_code == 0
    assert all(f"\n{name}  " in "\n" + printed.output for name in ("A01", "B01", "C01"))
    assert "gain ≥ 0.5: 0.700 [0.600, 0.800]" in printed.output
    data = json.loads(CliRunner().invoke(app, ["claims", "--json"]).output)
    assert [row["verdicts"]["cpu"] for row in data] == ["holds", "not on this profile", "not on this profile"]


def test_no_book_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed = CliRunner().invoke(app, ["claims"])
    assert failed.exit_code == 2 and "no claims.yml" in failed.output
