from __future__ import annotations

import re

import pandas as pd
import pytest
from typer.testing import CliRunner

from retrieval_heads.cli import app
from retrieval_heads.models.families import FAMILIES
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
        (("heads", "llama-3.1-9b"), "no model is called 'llama-3.1-9b'; did you mean 'llama-3.1-8b'?"),
        (("heads", "{model}/.."), "has no config.json"),
    ],
)
def test_a_mistake_is_one_clear_line(tiny_llama_folder, arguments, message):
    arguments = [str(argument).format(model=tiny_llama_folder) for argument in arguments]
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.output and "Traceback" not in result.output
    assert result.output.count("\n") == 1


def test_heads_lists_a_model_of_the_catalog_and_its_memory():
    result = call("heads", "zamba2-7b", "--length", 8192, "--batch", 2)
    assert result.exit_code == 0, result.output
    lines = [line.split(maxsplit=3) for line in result.output.split("\n")]
    assert ["mamba2", "112", "64", "0–80"] in lines
    assert ["attention", "32", "224", "6, 11, 17, 23, 29, 35, 41, 47, 53, 59, 65, 71, 77"] in lines
    assert "7,356,749,648 parameters" in result.output and "9,488 (9,072 mamba2, 416 attention)" in result.output
    cache = 2 * 2 * 13 * 32 * 224 * 8192 * 2 / 1e9  # keys and values, batch, layers, heads, width, tokens, bytes
    state = 2 * 81 * ((7168 + 4 * 64) * 4 * 2 + 7168 * 64 * 4) / 1e9
    weights = 2 * 7_356_749_648 / 1e9
    sizes = {"weights": weights, "KV cache": cache, "recurrent state": state, "together": weights + cache + state}
    for what, size in sizes.items():
        assert re.search(rf"^{what} +{size:.3f}$", result.output, re.MULTILINE), what
    assert "GB of 10⁹ bytes" in result.output


def test_heads_reads_a_folder_and_a_dtype(tiny_llama_folder):
    result = call("heads", tiny_llama_folder, "--dtype", "float32", "--length", 1_000_000)
    assert result.exit_code == 0, result.output
    assert "heads in all: 12 (12 attention)" in result.output
    assert re.search(
        r"^KV cache +0\.768$", result.output, re.MULTILINE
    )  # 2 × 3 layers × 2 heads × 16 × 4 bytes a token
    for option in (("--length", 0), ("--batch", 0), ("--dtype", "int8")):
        assert call("heads", tiny_llama_folder, *option).exit_code == 2


def test_families_prints_every_row_of_the_table():
    result = call("families")
    assert result.exit_code == 0, result.output
    lines = result.output.rstrip("\n").split("\n")[1:]
    assert len(lines) == sum(len(family.rows) for family in FAMILIES.values())
    for kind, family in FAMILIES.items():
        for row in family.rows:
            assert any(
                line.startswith(kind + " ")
                and f" {family.layers} " in line
                and row.path in line
                and row.heads in line
                and row.width in line
                for line in lines
            )
