"""The world: the same for everyone, one token a word, and tasks that are about it and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoTokenizer

from retrieval_heads.tasks.counting import CountingUp
from retrieval_heads.tasks.kv_retrieval import KVRetrieval
from retrieval_heads.tasks.needle import Needle
from retrieval_heads.tasks.world import BEGIN, RELATIONS, World
from retrieval_heads.tasks.world_facts import WorldFacts, WorldLetters

WORLD = World(0)
TOKENIZER = WORLD.tokenizer()
TASKS = [
    WorldFacts(),
    WorldLetters(),
    WorldLetters(form="dialogue", which="all"),
    KVRetrieval(template="continuation", values="words", single_token=True),
    KVRetrieval(spaced=True),
    Needle(tokens=90),
    Needle(tokens=90, read_twice=True),
    CountingUp(),
]


def test_the_same_seed_is_the_same_world_in_every_process():
    code = "from retrieval_heads.tasks.world import World; w = World(0); print(w.words, w.facts)"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{WORLD.words} {WORLD.facts}\n".encode()}
    assert World(1).facts != WORLD.facts


def test_a_word_is_a_token_and_lines_are_kept():
    text = "Memorize the following dictionary:\n" + ":\n".join(WORLD.words[10:300])
    tokens = TOKENIZER.convert_ids_to_tokens(TOKENIZER(text).input_ids)
    assert tokens[0] == BEGIN and tokens.count("\n") == text.count("\n")
    assert set(WORLD.words[10:300]) <= set(tokens)
    assert len(set(WORLD.words)) == len(WORLD.words) == len(TOKENIZER) - 3 < 1400


def test_the_tokenizer_is_a_normal_one(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "cat:7\nThe home of"
    assert again(text).input_ids == TOKENIZER(text).input_ids
    assert again(text, return_offsets_mapping=True).offset_mapping == [(0, 0), (0, 3), (3, 4), (4, 5), (5, 6), (6, 9),
                                                                       (10, 14), (15, 17)]  # fmt: skip
    assert again("xylophonists").input_ids[-1] == again.unk_token_id


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.name}")
def test_every_task_is_written_in_the_words_of_the_world(task):
    for item in task.items(TOKENIZER)[:60]:
        texts = [item.prompt + candidate for candidate in item.candidates]
        assert not any(TOKENIZER.unk_token_id in ids for ids in TOKENIZER(texts).input_ids)
    assert task.items(TOKENIZER) == task.items(TOKENIZER)
    other = task.model_copy(update={"seed": 1})
    assert [i.prompt for i in other.items(TOKENIZER)] != [i.prompt for i in task.items(TOKENIZER)]


def test_facts_are_complete_and_a_third_of_the_letters_is_held_out():
    items = WorldFacts().items()
    assert len(items) == len(WORLD.facts) == 2500
    answers = {(fact.person, fact.answer) for fact in WORLD.facts}
    for item in items:
        (person,) = [name for name in WORLD.people if name in item.prompt.split()]
        assert (person, item.candidates[item.answer].strip()) in answers
        assert set(map(str.strip, item.candidates)) <= set(RELATIONS[item.group].answers)
    held, trained = (WorldLetters(which=which).items() for which in ("held_out", "trained"))
    assert len(held) + len(trained) == 2500 and 750 < len(held) < 920


@pytest.mark.parametrize("form", ["block", "dialogue"])
def test_letters_stand_by_the_options_and_every_letter_is_right_equally_often(form):
    items = WorldLetters(form=form, which="all").items()
    truth = {(fact.person, fact.relation): fact.answer for fact in WORLD.facts}
    for item in items:
        (person,) = [name for name in WORLD.people if name in item.prompt.split()]
        line = f"{truth[person, item.group]}: {item.candidates[item.answer].strip()}"
        assert any(each.removeprefix("User: ") == line for each in item.prompt.split("\n"))
    counts = Counter(item.answer for item in items)
    assert set(counts) == {0, 1, 2, 3} and min(counts.values()) > 550


@pytest.mark.parametrize(("depth", "place"), [(0, -1), (1, 0)])
def test_depth_0_is_the_end_of_the_haystack(depth, place):
    for item in Needle(tokens=90, depth=depth, prompts=5).items():
        haystack, question, _ = item.prompt.split("\n")
        sentences = haystack.removesuffix(".").split(". ")
        about = question.removeprefix("What is the password of the ").removesuffix("?")
        assert sentences[place] == f"The password of the {about} is{item.candidates[item.answer]}"
        assert haystack.count("password") == 1


@given(tokens=st.integers(9, 600), twice=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_a_haystack_has_the_length_that_was_asked_for(tokens, twice, seed):
    (item,) = Needle(tokens=tokens, prompts=1, read_twice=twice, seed=seed).items()
    length = len(TOKENIZER(item.prompt).input_ids)
    assert abs(length - (1 + twice) * (tokens + 25)) <= (1 + twice) * 10
    assert item.prompt.count(item.candidates[item.answer] + ".") >= 1 + twice


@given(pairs=st.integers(4, 12), steps=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_every_sum_is_counted_rightly_and_one_looked_up_rightly(pairs, steps, seed):
    (item,) = CountingUp(pairs=pairs, steps=steps, prompts=1, seed=seed).items()
    digits = dict(line.split(":") for line in item.context.strip().split("\n")[1:])
    right = []
    for candidate in item.candidates:
        total, looked_up = 0, []
        for line in candidate.removesuffix(".").split("\n"):
            key, _, digit, _, said = line.replace(":", " :").split()
            total += int(digit)
            looked_up.append(digits[key] == digit)
            assert int(said) == total
        assert len(looked_up) == steps
        right.append(all(looked_up))
    assert right == [i == item.answer for i in range(4)]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: WorldFacts(count=2501).items(), "count=2501"),
        (lambda: WorldFacts(count=0), "count"),
        (lambda: WorldLetters(form="essay"), "form"),
        (lambda: Needle(depth=1.5), "depth"),
        (lambda: Needle(candidates=1), "candidates"),
        (lambda: CountingUp(pairs=3), "pairs"),
        (lambda: CountingUp(pairs=4, steps=5).items(), "steps=5"),
    ],
)
def test_bad_input_is_refused_by_name(make, name):
    with pytest.raises((ValueError, ValidationError), match=name):
        make()


def test_a_dictionary_asks_only_for_words_that_the_tokenizer_knows():
    keys = {line.split(":")[0] for item in KVRetrieval().items(TOKENIZER) for line in item.context.split("\n")[1:-1]}
    assert keys <= set(WORLD.nouns) and len(keys) > 150
