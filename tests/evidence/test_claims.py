"""claims.yml holds every claim of the papers, and the schema says what is wrong with another one."""

import pytest

from retrieval_heads.evidence.claims import Claim, Criterion, find_root, read_claims

IDS = [f"{paper}{number:02}" for paper, count in (("A", 26), ("B", 9), ("C", 9)) for number in range(1, count + 1)]


def write(tmp_path, text):
    path = tmp_path / "claims.yml"
    path.write_text(text)
    return path


def test_every_claim_of_the_papers_is_there():
    assert list(read_claims()) == IDS


def test_every_chapter_that_decides_a_claim_is_in_the_book_under_the_heading_that_the_scorecard_links_to():
    for claim in read_claims().values():
        if claim.chapter:
            chapter = (find_root() / "book" / f"{claim.chapter}.ipynb").read_text(encoding="utf-8")
            assert "## What the paper reports, and what we see" in chapter, claim.id


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {id: A01, where: x, says: y, open: z, verdict: holds}", "claim A01: verdict: Extra inputs"),
        ("- {id: D01, where: x, says: y, open: z}", "claim D01: id: String should match"),
        ("- {id: A01, where: x, open: z}", "claim A01: says: Field required"),
        ("- {id: A01, where: x, says: y}", "has criteria, or says under open"),
        ("- {id: A01, where: x, says: y, chapter: c}", "a claim with criteria needs its chapter"),
        ("- {id: A01, where: x, says: y, open: z, not_on: {tpu: no}}", "not_on.tpu"),
        ("- {id: A01, where: x, says: y, open: z}\n- {id: A01, where: x, says: y, open: z}", "stands there twice"),
        ("- {id: A01, where: x, says: y, chapter: c, criteria: [{measured: m}]}", "one of at_least and at_most"),
        (
            "- {id: A01, where: x, says: y, chapter: c, criteria: [{measured: m, at_least: 1, direction: 2}]}",
            "direction 2.0 is not weaker than ≥ 1",
        ),
        ("id: A01", "must be a list"),
        ("- [", "is not YAML"),
        ("- A01", "claim number 1"),
    ],
)
def test_a_claim_that_breaks_the_schema_is_named(tmp_path, text, said):
    with pytest.raises(ValueError, match=r"claims\.yml") as caught:
        read_claims(write(tmp_path, text))
    assert said in str(caught.value)


def test_no_book_here(tmp_path):
    with pytest.raises(ValueError, match=r"no claims\.yml"):
        find_root(tmp_path)


def test_a_reason_why_not():
    claim = Claim(id="A01", where="§1", says="x", chapter="c", criteria=(Criterion(measured="m", at_least=1),))
    assert claim.why_not("cpu") is None
    assert claim.model_copy(update={"not_on": {"cpu": "too large"}}).why_not("cpu") == "too large"
    assert Claim(id="A01", where="§1", says="x", open="unwritten").why_not("paper") == "unwritten"
