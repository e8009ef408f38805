"""Killed runs go on, changed runs start anew, and many processes give what one gives."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from retrieval_heads.heads import HeadSet
from retrieval_heads.interventions.knockout import Knockout, knockout
from retrieval_heads.models.families import heads_of
from retrieval_heads.models.loading import load
from retrieval_heads.probe import engine
from retrieval_heads.probe.engine import INTACT, score
from retrieval_heads.probe.store import Store
from retrieval_heads.probe.sweep import sweep
from retrieval_heads.tasks.kv_retrieval import KVRetrieval

TASK = KVRetrieval(pairs=4, dictionaries=5, template="continuation")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
PROBE = ("probe", "--pairs", "4", "--dictionaries", "5", "--template", "continuation", "--values", "numbers", "--full")


@pytest.fixture(scope="module")
def model(tiny_llama_folder):
    return load(tiny_llama_folder)


@pytest.fixture
def counted(monkeypatch):
    """The passes that are computed, not read."""
    done, real = [], engine.Run.compute
    monkeypatch.setattr(engine.Run, "compute", lambda run, unit: done.append(unit) or real(run, unit))
    return done


def conditions(model):
    return [INTACT, *(Knockout(HeadSet([head])) for head in heads_of(model))]


def test_a_second_call_computes_nothing_and_gives_the_same(model, tmp_path, counted):
    first = score(model, TASK.items(), conditions(model), resume=tmp_path)
    assert counted
    counted.clear()
    second = score(model, TASK.items(), conditions(model), resume=tmp_path)
    assert not counted
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a.scores, b.scores)
        np.testing.assert_array_equal(a.greedy, b.greedy)


def test_a_half_written_unit_is_computed_again(model, tmp_path, counted):
    expected = score(model, TASK.items(), conditions(model), resume=tmp_path)
    unit = sorted(tmp_path.glob("*.npz"))[3]
    unit.write_bytes(unit.read_bytes()[:100])
    counted.clear()
    again = score(model, TASK.items(), conditions(model), resume=tmp_path)
    assert len(counted) == 1
    np.testing.assert_array_equal(again[5].scores, expected[5].scores)


@pytest.mark.parametrize("changed", ["items", "interventions", "dtype", "torch"])
def test_another_run_starts_anew_and_says_why(
    model, tiny_llama_folder, tmp_path, counted, capsys, monkeypatch, changed
):
    items, asked = TASK.items(), conditions(model)
    score(model, items, asked, resume=tmp_path)
    counted.clear()
    capsys.readouterr()
    if changed == "items":
        items = items[:-1]
    elif changed == "interventions":
        asked = asked[:-1]
    elif changed == "dtype":
        model = load(tiny_llama_folder, dtype="bfloat16")
    else:
        real = engine.describe
        monkeypatch.setattr(engine, "describe", lambda model: {**real(model), "torch": "1.0"})
    fresh = score(model, items, asked, resume=tmp_path)
    assert counted
    said = capsys.readouterr().err
    assert "starting anew" in said and f"{changed} was" in said
    np.testing.assert_allclose(fresh[0].scores, score(model, items)[0].scores, atol=1e-5)


def test_a_lost_record_takes_its_units_along(tmp_path):
    store = Store(tmp_path, {"a": 1}, {})
    store.put(0, np.zeros(1), np.zeros(1, bool))
    (tmp_path / "run.json").unlink()
    assert Store(tmp_path, {"a": 2}, {}).get(0) is None


def test_a_sweep_of_another_task_says_which_field_changed(model, tmp_path, capsys):
    sweep(model, TASK, ["L0H0"], resume=tmp_path)
    capsys.readouterr()
    sweep(model, TASK.model_copy(update={"seed": 3}), ["L0H0"], resume=tmp_path)
    assert "task.seed was 0, is 3" in capsys.readouterr().err


def test_a_continued_run_keeps_the_sizes_that_it_began_with(tmp_path):
    Store(tmp_path, {"a": 1}, {"copies": [9]})
    assert Store(tmp_path, {"a": 1}, {"copies": [4]}).plan == {"copies": [9]}
    assert Store(tmp_path, {"a": 2}, {"copies": [4]}).plan == {"copies": [4]}


def test_a_view_cannot_be_resumed(model, tmp_path):
    with pytest.raises(ValueError, match="resume needs the model itself"):
        score(knockout(model, ["L0H0"]), TASK.items(), resume=tmp_path)


def start(arguments, launcher=("-c", "from retrieval_heads.cli import app; app()"), **options):
    return subprocess.Popen([sys.executable, *launcher, *map(str, arguments)], env=ENVIRONMENT, **options)


SLOWLY = """
import time
from retrieval_heads.probe import engine
compute = engine.Run.compute
engine.Run.compute = lambda run, unit: time.sleep(0.1) or compute(run, unit)
from retrieval_heads.cli import app
app()
"""


def test_killed_at_any_moment_it_ends_with_the_same_bytes(tiny_llama_folder, tmp_path):
    name = f"{tiny_llama_folder.name}-kv-4-continuation-numbers-seed-0"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start([*PROBE, tiny_llama_folder, "--output", whole], stdout=subprocess.DEVNULL).wait() == 0
    process = start([*PROBE, tiny_llama_folder, "--output", killed], ("-c", SLOWLY), stdout=subprocess.DEVNULL)
    units = killed / f"{name}.unfinished"
    wanted, deadline = random.randrange(1, 15), time.time() + 60
    while len(list(units.glob("round-*/*.npz"))) < wanted and time.time() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = len(list(units.glob("round-*/*.npz")))
    assert wanted <= finished < 20 and not (killed / f"{name}.csv").exists()
    assert start([*PROBE, tiny_llama_folder, "--output", killed], stdout=subprocess.DEVNULL).wait() == 0
    assert (killed / f"{name}.csv").read_bytes() == (whole / f"{name}.csv").read_bytes()
    assert not units.exists()


def test_two_processes_give_the_same_file_as_one(tiny_llama_folder, tmp_path):
    name = f"{tiny_llama_folder.name}-kv-4-continuation-numbers-seed-0.csv"
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    one = start([*PROBE, tiny_llama_folder, "--output", tmp_path / "one"], **options)
    assert one.wait() == 0, one.stdout.read()
    launcher = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1")
    launcher += ("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")
    module = ("-m", "retrieval_heads.cli")
    two = start([*PROBE, tiny_llama_folder, "--output", tmp_path / "two"], (*launcher, *module), **options)
    said, _ = two.communicate(timeout=240)
    assert two.returncode == 0, said
    assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert said.count("table of all heads") == 1  # one of them talks
