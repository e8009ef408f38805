from __future__ import annotations

import pandas as pd
import pytest
from typer.testing import CliRunner

from retrieval_heads.cli import app
from retrieval_heads.probe.head_scores import HeadScores


def call(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_help_names_every_command_and_explains_itself():
    top, probe, run = call("--help"), call("probe", "--help"), call("run", "--help")
    assert top.exit_code == probe.exit_code == run.exit_code == 0
    assert "probe" in top.output and "run" in top.output
    assert "Knock out every head" in probe.output and "--template" in probe.output
    assert "Execute CHAPTER" in run.output and "--parameter" in run.output


def test_probe_prints_a_ranking_and_writes_table_and_map(tiny_llama_folder, tmp_path):
    options = ("--pairs", 4, "--dictionaries", 2, "--top", 3, "--values", "numbers", "--template", "continuation")
    result = call("probe", tiny_llama_folder, *options, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    stem = f"{tiny_llama_folder.name}-kv-4-continuation-numbers-seed-0"
    scores = HeadScores.load(tmp_path / "out" / f"{stem}.csv")
    assert len(scores.table) == 12 and scores.header["task"]["pairs"] == 4
    lines = [line.split()[0] for line in result.output.split("\n") if line.startswith("L")]
    assert lines == [str(head) for head in scores.ranking[:3]]
    assert (tmp_path / "out" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")


def test_probe_estimates_from_gradients(tiny_llama_folder, tmp_path):
    options = ("--pairs", 4, "--dictionaries", 2, "--top", 3, "--estimate", "midpoint", "--output", tmp_path)
    result = call("probe", tiny_llama_folder, *options)
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / f"{tiny_llama_folder.name}-kv-4-published-numbers-seed-0-estimates.csv")
    assert len(table) == 12 and table.estimate.is_monotonic_decreasing
    first = table.iloc[0]
    assert f"\nL{first.layer}H{first['head']} " in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("probe", "smollm2-135n"), "no model is called 'smollm2-135n'; did you mean 'smollm2-135m'?"),
        (("probe", "{model}", "--pairs", 1), "pairs=1: Input should be greater than or equal to 2"),
        (("probe", "{model}", "--pairs", 95), "use at most 90"),
        (("probe", "{model}", "--top", 0), "race for the top 0"),
        (("run", "kv_retrieval", "-p", "seed"), "'seed' is not a parameter; write NAME=VALUE"),
        (("run", "no_such_chapter"), "no chapter 'no_such_chapter'"),
    ],
)
def test_a_mistake_is_one_clear_line(tiny_llama_folder, arguments, message):
    arguments = [str(argument).format(model=tiny_llama_folder) for argument in arguments]
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.output and "Traceback" not in result.output
    assert result.output.count("\n") == 1
