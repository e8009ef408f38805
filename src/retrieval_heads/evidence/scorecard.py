"""All claims and their verdicts: as data, in a terminal, and as a table of the book that can be filtered."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Any, NamedTuple

from .claims import PROFILES, Claim, read_claims
from .judge import Measured, Verdict, decide
from .measurements import as_data, read_measurements

VERDICTS = "what-the-paper-reports-and-what-we-see"  # the heading of every chapter under which claims are decided
PAPERS = {"A": "Gather and Aggregate", "B": "Some attention", "C": "Distillation"}


class Row(NamedTuple):
    """A claim and what the runs of each profile say about it."""

    claim: Claim
    verdicts: dict[str, Verdict]
    found: dict[str, Measured]  # by profile

    def why(self, profile: str) -> str:
        """Why there is no verdict; empty if there is one."""
        if self.verdicts[profile] is not Verdict.absent:
            return ""
        return self.claim.why_not(profile) or f"no run of the {profile} profile is stored"


class Scorecard:
    """Every claim × every profile. In a notebook it shows as a table with filters.

    Raises:
        ValueError: there is no book here, or its claims break the schema.
    """

    def __init__(self) -> None:
        measured = {profile: read_measurements(profile) for profile in PROFILES}
        self.rows = [self._row(claim, measured) for claim in read_claims().values()]

    @staticmethod
    def _row(claim: Claim, measured: dict[str, dict[str, Measured]]) -> Row:
        names = [rule.measured for rule in claim.criteria]
        verdicts, found = {}, {}
        for profile in PROFILES:
            here = measured[profile].get(claim.chapter, {})
            verdicts[profile] = decide(claim, here, profile)
            found[profile] = {name: here[name] for name in names if name in here}
        return Row(claim, verdicts, found)

    def counts(self, profile: str) -> dict[str, int]:
        """How many claims got each verdict on a profile, the empty ones included."""
        found = Counter(row.verdicts[profile] for row in self.rows)
        return {str(verdict): found[verdict] for verdict in Verdict}

    def data(self) -> list[dict[str, Any]]:
        """One dictionary a claim, ready for JSON."""
        return [
            {
                **row.claim.model_dump(include={"id", "where", "says", "reported", "chapter"}),
                "criteria": [f"{rule.measured} {rule.comparison}" for rule in row.claim.criteria],
                "verdicts": {profile: str(verdict) for profile, verdict in row.verdicts.items()},
                "reasons": {profile: why for profile in PROFILES if (why := row.why(profile))},
                "measured": {profile: as_data(found) for profile, found in row.found.items()},
            }
            for row in self.rows
        ]

    def text(self, profile: str) -> str:
        """For a terminal: a line a claim, what decided it below, the counts at the end."""
        lines = []
        for row in self.rows:
            lines.append(f"{row.claim.id}  {row.verdicts[profile]!s:<20} {row.claim.says}")
            if why := row.why(profile):
                lines.append(f"{'':26}{why}")
            for rule in row.claim.criteria:
                for model, found in row.found[profile].get(rule.measured, {}).items():
                    lines.append(f"{'':26}{rule.measured} {rule.comparison}: {found}, {model}")
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts(profile).items())
        return "\n".join([*lines, "", f"{len(self.rows)} claims on the {profile} profile: {counts}"])

    def _repr_html_(self) -> str:
        rows = "\n".join(self._html_row(row) for row in self.rows)
        papers = "".join(f'<option value="{key}">{key}: {name}</option>' for key, name in PAPERS.items())
        verdicts = "".join(
            f'<option value="{_slug(name)}">{name} ({count})</option>' for name, count in self.counts("cpu").items()
        )
        head = "".join(f"<th>{profile}</th>" for profile in PROFILES)
        return f"""{_STYLE}
<div class="scorecard">
<p class="filters">
<label>paper <select data-filter="paper"><option value="">all</option>{papers}</select></label>
<label>verdict on cpu <select data-filter="verdict"><option value="">all</option>{verdicts}</select></label>
<label>words <input data-filter="words" type="search" placeholder="Aggregate"></label>
<output>{len(self.rows)} claims</output>
</p>
<table><thead><tr><th>claim</th><th>says</th>{head}</tr></thead><tbody>
{rows}
</tbody></table>
</div>
{_SCRIPT}"""

    def __repr__(self) -> str:
        return "\n".join(self.text(profile).rsplit("\n", 1)[-1] for profile in PROFILES)

    @staticmethod
    def _html_row(row: Row) -> str:
        claim = row.claim
        cells = []
        for profile in PROFILES:
            verdict = row.verdicts[profile]
            shown = f'<span class="verdict {_slug(verdict)}">{verdict}</span>'
            if verdict is Verdict.absent:
                shown += f'<small class="why">{escape(row.why(profile))}</small>'
            else:
                shown = f'<a href="{claim.chapter}.html#{VERDICTS}">{shown}</a>'
            cells.append(f'<td data-profile="{profile}">{shown}</td>')
        reported = f"<br><small>the paper: {escape(claim.reported)}</small>" if claim.reported else ""
        return (
            f'<tr id="{claim.id}" data-paper="{claim.id[0]}" data-verdict="{_slug(row.verdicts["cpu"])}">'
            f"<td><strong>{claim.id}</strong><br><small>{escape(claim.where)}</small></td>"
            f"<td>{escape(claim.says)}{reported}</td>{''.join(cells)}</tr>"
        )


def _slug(verdict: str) -> str:
    return str(verdict).replace(" ", "-")


# The theme's own colours where it has them, so that light and dark both read well; the words carry the meaning.
_STYLE = """<style>
.scorecard table { width: 100%; border-collapse: collapse; font-size: .9em }
.scorecard th, .scorecard td { text-align: left; vertical-align: top; padding: .4em .6em;
  border-bottom: 1px solid var(--pst-color-border, #ccc); white-space: normal }
.scorecard .filters { display: flex; flex-wrap: wrap; gap: .5em 1em; align-items: center }
.scorecard select, .scorecard input { max-width: 12em; color: inherit; background: transparent;
  border: 1px solid var(--pst-color-border, #999); border-radius: .3em; padding: .1em .4em }
.scorecard select option { color: #111; background: #fff }
.scorecard .verdict { display: inline-block; padding: .05em .5em; border-radius: .6em; color: #fff;
  white-space: nowrap }
.scorecard .holds { background: #1b7f4d } .scorecard .holds-in-direction { background: #2a7886 }
.scorecard .undecided { background: #8a6d00 } .scorecard .fails { background: #b3261e }
.scorecard .not-on-this-profile { background: #66707a }
.scorecard .why { display: block }
@media (max-width: 700px) {
  .scorecard thead { display: none }
  .scorecard table, .scorecard tbody, .scorecard tr, .scorecard td { display: block; width: auto }
  .scorecard tr { border-bottom: 2px solid var(--pst-color-border, #ccc); padding: .5em 0 }
  .scorecard td { border: 0; padding: .15em 0 }
  .scorecard td[data-profile]::before { content: attr(data-profile) ": " }
}
</style>"""

_SCRIPT = """<script>
document.querySelectorAll(".scorecard").forEach((card) => {
  const by = (name) => card.querySelector(`[data-filter=${name}]`);
  const show = () => {
    const words = by("words").value.toLowerCase();
    let count = 0;
    card.querySelectorAll("tbody tr").forEach((row) => {
      const shown = (!by("paper").value || row.dataset.paper === by("paper").value)
        && (!by("verdict").value || row.dataset.verdict === by("verdict").value)
        && row.textContent.toLowerCase().includes(words);
      row.style.display = shown ? "" : "none";  // not `hidden`: on a phone rows have a display of their own
      count += shown;
    });
    card.querySelector("output").textContent = `${count} claims`;
  };
  card.querySelectorAll("[data-filter]").forEach((filter) => filter.addEventListener("input", show));
  show();
});
</script>"""
