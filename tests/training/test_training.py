"""Training: batches that depend on their step alone, a loss that falls, and a run that resumes to the same weights."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from retrieval_heads.models.loading import load
from retrieval_heads.tasks.kv_retrieval import KVRetrieval
from retrieval_heads.tasks.world import world
from retrieval_heads.tasks.world_facts import WorldFacts, WorldLetters
from retrieval_heads.training import evaluation
from retrieval_heads.training.loop import rate, train
from retrieval_heads.training.mixture import IGNORED, ROWS, SHARES, Mixture
from retrieval_heads.training.recipes import RECIPES, find

WORLD = world(0)
TOKENIZER = WORLD.tokenizer()
TINY = replace(
    find("zoo/llama"),
    config={"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2},
    steps=30,
    tokens_per_step=256,
    learning_rate=2e-2,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return folder, train(TINY, folder, every=5)


def mixture(seed: int = 0) -> Mixture:
    return Mixture(WORLD, TOKENIZER, 1024, seed)


def test_a_batch_depends_on_seed_and_step_alone():
    first, again = mixture(), mixture()
    again.batch(3, 0.5)
    for a, b in zip(first.batch(7, 0.5), again.batch(7, 0.5)):
        assert torch.equal(a, b)
    assert not torch.equal(mixture(1).batch(7, 0.5)[0][:1, :50], first.batch(7, 0.5)[0][:1, :50])


def test_labels_are_the_tokens_that_can_be_known():
    lengths = set()
    for step in range(12):
        ids, labels = mixture().batch(step, 0.5)
        lengths.add(ids.shape[1])
        assert ((labels == ids) | (labels == IGNORED)).all()
        assert 0.05 < (labels != IGNORED).float().mean() < 0.8
        assert TOKENIZER.unk_token_id not in ids
    assert lengths <= set(ROWS) and len(lengths) > 1


def test_dictionaries_grow():
    def largest(size: float) -> int:
        lines = 0
        for step in range(30):
            for row in mixture().batch(step, size)[0]:
                for document in TOKENIZER.decode(row).split("Memorize the following dictionary :")[1:]:
                    pairs = document.split("The value")[0].split("<|begin|>")[0].strip().split("\n")
                    lines = max(lines, len({pair.split(":")[0] for pair in pairs if ":" in pair}))
        return lines

    assert largest(0) <= 10 < largest(1)  # a sum's dictionary has up to ten lines from the start


def test_the_letter_form_of_a_held_out_fact_is_in_no_training_text():
    held = {i.prompt for form in ("block", "dialogue") for i in WorldLetters(form=form, which="held_out").items()}
    statements = {prompt.split("\n")[0].split(": ")[1] for prompt in held}
    seen, stated = 0, 0
    for step in range(150):
        for document in "".join(TOKENIZER.decode(row) for row in mixture().batch(step, 0.9)[0]).split("<|begin|>"):
            text = document.strip()
            head, _, rest = text.partition("\n")
            asked = head.partition(" : ")[2].strip()
            if text.startswith(("Question :", "User :")) and rest:
                seen += 1
                assert asked not in statements
            stated += any(statement in text for statement in statements)
    assert seen > 200 and stated > 50


def test_every_kind_of_text_is_learned_from_at_some_time():
    assert all(last > 0 for _, last in SHARES.values())


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_makes_a_small_model_that_learns(name):
    model = RECIPES[name].build(TOKENIZER)
    assert 0.7e6 < sum(p.numel() for p in model.parameters()) < 4e6
    ids, labels = Mixture(WORLD, TOKENIZER, 128, 0).batch(0, 0.5)
    model(input_ids=ids[:, :64], labels=labels[:, :64], use_cache=False).loss.backward()
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
    assert json.loads((folder / "record.json").read_text()) == json.loads(json.dumps(record))
    assert record["tokens"] > record["learned_tokens"] > 500
    assert record["sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert record["recipe"]["steps"] == 30 and record["versions"]["torch"] == torch.__version__.split("+")[0]
    assert not (folder / "checkpoint.safetensors").exists()


def test_killed_and_resumed_it_gives_the_same_weights(trained, tmp_path):
    folder, _ = trained
    train(TINY, tmp_path, every=5, until=13)
    assert not (tmp_path / "model.safetensors").exists()
    record = train(TINY, tmp_path, every=5)
    assert record["tokens"] == json.loads((folder / "record.json").read_text())["tokens"]
    whole, resumed = (load_file(each / "model.safetensors") for each in (folder, tmp_path))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


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


def test_the_evaluation_asks_every_task_of_the_world():
    assert {task.name for task in evaluation.tasks().values()} == {
        "world_facts", "world_letters", "kv_retrieval", "needle", "counting_up"
    }  # fmt: skip


def test_an_unknown_recipe_names_those_there_are():
    with pytest.raises(ValueError, match="zoo/llama"):
        find("zoo/lama")
