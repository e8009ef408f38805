"""Training: batches that depend on their step alone, a loss that falls, and a run that resumes to the same weights."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from retrieval_heads.models.cache import LoadError
from retrieval_heads.models.loading import load
from retrieval_heads.tasks.kv_retrieval import KVRetrieval
from retrieval_heads.tasks.world import RELATIONS, world
from retrieval_heads.tasks.world_facts import WorldFacts
from retrieval_heads.training import evaluation
from retrieval_heads.training.loop import rate, train
from retrieval_heads.training.mixture import IGNORED, STAGES, Batch, Mixture, facts
from retrieval_heads.training.recipes import RECIPES, find
from retrieval_heads.training.records import record, training_curve

WORLD = world(0)
TOKENIZER = WORLD.tokenizer()
COLON = TOKENIZER.convert_tokens_to_ids(":")
TINY = replace(
    find("zoo/llama"),
    config={"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2},
    steps=30,
    tokens_per_step=256,
    learning_rate=2e-2,
)

RUN_TINY = """
import sys
from retrieval_heads import cli
from retrieval_heads.training import evaluation, loop, recipes
from tests.training.test_training import TINY
recipes.RECIPES["llama"] = TINY
evaluation.tasks = lambda seed: {}
train = loop.train
loop.train = lambda recipe, folder: train(recipe, folder, every=5)
sys.argv = ["retrieval-heads", "train", "zoo/llama", "--output", sys.argv[1]]
cli.app()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return folder, train(TINY, folder, every=5)


def mixture(seed: int = 0) -> Mixture:
    return Mixture(WORLD, TOKENIZER, 1024, seed)


def batches(done: float, count: int) -> Iterator[Batch]:
    for step in range(count):
        yield mixture().batch(step, done)


def test_a_batch_depends_on_seed_and_step_alone():
    first, again = mixture(), mixture()
    again.batch(3, 0.5)
    a, b = (each.batch(7, 0.6) for each in (first, again))
    assert torch.equal(a.ids, b.ids) and torch.equal(a.labels, b.labels) and a.kinds == b.kinds
    assert not torch.equal(mixture(1).batch(7, 0.6).ids[:1, :20], a.ids[:1, :20])


def test_labels_are_the_tokens_that_can_be_known():
    lengths = set()
    for batch in batches(0.9, 25):
        lengths.add(batch.ids.shape[1])
        assert batch.ids.shape == batch.labels.shape and len(batch.kinds) == len(batch.ids)
        assert ((batch.labels == batch.ids) | (batch.labels == IGNORED)).all()
        assert TOKENIZER.unk_token_id not in batch.ids
        for kind, row in zip(batch.kinds, batch.labels):
            learned = (row != IGNORED).float().mean()
            assert learned <= 1 if kind == "filler" else learned < 0.55, kind
    assert lengths == set(STAGES[-1].rows)


@pytest.mark.parametrize("kind", ["copies", "marked_copies"])
def test_what_is_learned_of_copies_comes_for_the_second_time(kind):
    stage = next(stage for stage in STAGES if any(kind in map(_name, row) for row in stage.rows.values()))
    seen = 0
    for batch in batches(stage.until - 1e-6, 20):
        for name, ids, labels in zip(batch.kinds, batch.ids.tolist(), batch.labels.tolist()):
            if name != kind:
                continue
            places = [i for i, label in enumerate(labels) if label != IGNORED]
            assert places == list(range(places[0], places[-1] + 1))
            copy, read = ids[places[0] - 1 : places[-1] + 1], ids[1 : places[0] - 1]  # the copy's first word is given
            assert any(read[i : i + len(copy)] == copy for i in range(len(read)))
            seen += 1
    assert seen > 20


def _name(kind) -> str:
    return kind.__name__


def test_every_answer_about_a_dictionary_is_in_it():
    asked = 0
    for batch in batches(0.9, 30):
        for kind, ids, labels in zip(batch.kinds, batch.ids.tolist(), batch.labels.tolist()):
            if kind != "dictionary":
                continue
            learned = [i for i, label in enumerate(labels) if label != IGNORED]
            pairs = {(ids[i - 1], ids[i + 1]) for i in range(len(ids) - 1) if ids[i] == COLON and i < learned[0] - 1}
            values = {value for _, value in pairs}
            assert {ids[i] for i in learned} <= values
            asked += len(learned)
    assert asked > 300


def test_dictionaries_grow():
    def largest(done: float) -> int:
        found = 0
        for batch in batches(done, 30):
            for kind, ids in zip(batch.kinds, batch.ids):
                if kind == "dictionary":
                    lines = TOKENIZER.decode(ids).split("\n")[1:]
                    found = max(found, len({line.split(":")[0] for line in lines if ":" in line}))
        return found

    assert 2 <= largest(0.27) <= 4 < largest(0.37) <= 12 < 20 < largest(0.9) <= 24


def test_the_letter_form_of_a_held_out_fact_is_in_no_training_text():
    """In letters, a question ends in a colon or is a turn of its own; in a statement, its answer follows."""
    held = [fact for fact in WORLD.facts if fact.held_out]
    statements = {
        TOKENIZER.decode(TOKENIZER(phrasing.format(fact.person), add_special_tokens=False).input_ids)
        for fact in held
        for phrasing in RELATIONS[fact.relation].phrasings
    }
    asked, stated = 0, 0
    for batch in batches(0.9, 60):
        for document in "".join(TOKENIZER.decode(row) for row in batch.ids).split("<|begin|>"):
            lines = [line.strip() for line in document.split("\n")]
            questions = {line.removeprefix("User : ").partition(" :")[0] for line in lines if " :" in line}
            assert not statements & questions
            asked += len(questions)
            stated += sum(line.startswith(tuple(statements)) for line in lines)
    assert asked > 1000 and stated > 100


def test_facts_come_alone_after_options_and_after_dictionaries():
    before = Counter()
    for seed in range(200):
        text = "".join(text for text, _ in facts(WORLD, random.Random(seed), 1.0, 72))
        lines = text.splitlines()
        pairs = [line for line in lines if ":" in line]
        assert lines[: len(pairs)] == pairs and len(lines) - len(pairs) == 8
        options = [line[-1] for line in pairs] == list("ABCD")
        before["options" if options else "dictionary" if pairs else "nothing"] += 1
        if options:
            assert lines[4].rstrip(".").split()[-1] in [line.split(":")[0] for line in pairs]
    assert 0.35 < before["options"] / 200 < 0.55 and min(before.values()) > 30


def test_every_kind_of_text_is_learned_from():
    kinds = {_name(kind) for stage in STAGES for row in stage.rows.values() for kind in row}
    assert kinds == {
        "copies", "marked_copies", "dictionary", "facts", "given_letters", "letters", "dialogue",
        "needle", "counting", "filler",
    }  # fmt: skip
    for stage in STAGES:
        assert sum(sum(row.values()) for row in stage.rows.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_makes_a_small_model_that_learns(name):
    model = RECIPES[name].build(TOKENIZER)
    assert 0.7e6 < sum(p.numel() for p in model.parameters()) < 4e6
    batch = Mixture(WORLD, TOKENIZER, 128, 0).batch(0, 0.1)
    model(input_ids=batch.ids, labels=batch.labels, use_cache=False).loss.backward()
    for parameter, gradient in ((n, p.grad) for n, p in model.named_parameters()):
        assert gradient is not None and gradient.isfinite().all(), parameter


def test_the_rate_goes_up_stays_and_goes_down():
    recipe = replace(TINY, steps=100, warmup=0.1, decay=0.2)
    rates = [rate(recipe, step) for step in range(100)]
    assert rates[:10] == pytest.approx([i / 10 for i in range(1, 11)])
    assert set(rates[10:80]) == {1.0} and rates[80:] == pytest.approx([i / 20 for i in range(20, 0, -1)])


def test_training_lowers_the_loss_and_leaves_a_record(trained):
    folder, record = trained
    assert record["curve"][-1][1] < record["curve"][0][1] - 0.1
    assert all(0 <= share <= 1 for _, _, right in record["curve"] for share in right.values())
    assert json.loads((folder / "record.json").read_text()) == json.loads(json.dumps(record))
    assert record["tokens"] > record["learned_tokens"] > 500
    assert record["sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert record["recipe"]["steps"] == 30 and record["versions"]["torch"] == torch.__version__.split("+")[0]
    assert not (folder / "checkpoint.safetensors").exists()


def test_the_curve_has_a_row_a_point_and_kind(trained):
    folder, record = trained
    table = training_curve(folder)
    assert set(table.model) == {"llama"} and table.tokens.max() == record["tokens"]
    assert len(table) == sum(len(right) for _, _, right in record["curve"])
    assert table.groupby("tokens").loss.nunique().eq(1).all() and table.right.between(0, 1).all()


def test_without_a_record_the_message_says_what_has_one(tmp_path):
    with pytest.raises(LoadError, match="record.json does not exist: what retrieval-heads train"):
        record(tmp_path)


def test_killed_and_resumed_it_gives_the_same_weights(trained, tmp_path):
    folder, _ = trained
    for stop in (13, 20):
        train(TINY, tmp_path, every=5, until=stop)
        assert not (tmp_path / "model.safetensors").exists()
    record = train(TINY, tmp_path, every=5)
    assert record["tokens"] == json.loads((folder / "record.json").read_text())["tokens"]
    whole, resumed = (load_file(each / "model.safetensors") for each in (folder, tmp_path))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_killed_at_any_moment_the_command_goes_on_to_the_same_weights(trained, tmp_path):
    """As a user has it: the process dies, the same command is given again."""
    command = [sys.executable, "-c", RUN_TINY, str(tmp_path)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "checkpoint.safetensors").exists():
        assert running.poll() is None, "it ended before its first checkpoint"
        time.sleep(0.01)
    running.kill()
    running.wait()
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0 and f"weights and record: {tmp_path}" in again.stdout, again.stderr
    (whole, _), resumed = trained, load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in load_file(whole / "model.safetensors").items())
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 2 and "has a trained model already" in refused.stderr


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    train(TINY, tmp_path, until=2)
    with pytest.raises(ValueError, match="another recipe"):
        train(replace(TINY, seed=1), tmp_path)


def test_the_stored_model_is_evaluated_into_its_record(trained, monkeypatch):
    folder, _ = trained
    few = {"facts": WorldFacts(count=20), "kv 4": KVRetrieval(pairs=4, dictionaries=5, single_token=True)}
    monkeypatch.setattr(evaluation, "tasks", lambda seed: few)
    found = evaluation.examine(folder)["evaluation"]
    assert list(found) == list(few) and found["facts"]["n"] == 20
    assert found["kv 4"]["chance"] == 0.25 and found["kv 4"]["low"] <= found["kv 4"]["value"] <= found["kv 4"]["high"]
    assert json.loads((folder / "record.json").read_text())["evaluation"] == found
    assert load(folder).tokenizer("cat").input_ids == TOKENIZER("cat").input_ids


def test_an_evaluation_of_some_tasks_has_these_and_no_others(trained, monkeypatch):
    few = {name: WorldFacts(count=count) for name, count in (("few", 5), ("more", 9))}
    monkeypatch.setattr(evaluation, "tasks", lambda seed: few)
    found = evaluation.evaluate(load(trained[0]), only=["more"])
    assert {name: each["n"] for name, each in found.items()} == {"more": 9}
    with pytest.raises(ValueError, match="no task is called kv 17; there are few, more"):
        evaluation.evaluate(None, only=["kv 17", "few"])


def test_the_evaluation_asks_every_task_of_the_world():
    assert {task.name for task in evaluation.tasks().values()} == {
        "world_facts", "world_letters", "kv_retrieval", "needle", "counting_up"
    }  # fmt: skip


def test_an_unknown_recipe_names_those_there_are():
    with pytest.raises(ValueError, match="zoo/llama"):
        find("zoo/lama")
