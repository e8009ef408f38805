from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from retrieval_heads.tasks.items import Item
from retrieval_heads.tasks.kv_retrieval import KVRetrieval, is_single_token, nouns

from ..oracles import prefix_free

tasks = st.builds(
    KVRetrieval,
    pairs=st.integers(2, 90),
    dictionaries=st.integers(1, 2),
    template=st.sampled_from(["published", "continuation"]),
    values=st.sampled_from(["numbers", "words"]),
    spaced=st.booleans(),
    seed=st.integers(0, 10**6),
)


@settings(max_examples=40, deadline=None)
@given(tasks)
def test_every_dictionary_holds_its_answers_and_no_value_begins_another(task):
    items = task.items()
    assert len(items) == task.pairs * task.dictionaries
    for item in items:
        lines = item.context.split("\n")[1:-1]
        keys = [line.split(":")[0] for line in lines]
        values = [line.split(":")[1].strip() for line in lines]
        assert len(set(keys)) == len(keys) == task.pairs and not set(keys) & set(values)
        assert prefix_free(values)
        asked = keys[item.answer]
        assert item.candidates[item.answer].strip() == values[item.answer]
        assert item.question in (f"The value of the key '{asked}' is", f"{asked}:")
    assert items == task.items()


def test_the_published_prompt_word_for_word():
    item = KVRetrieval(pairs=3, dictionaries=1, seed=0).items()[0]
    assert item.prompt == (
        "Memorize the following dictionary:\ninvestigation:5\ntrousers:33\nlion:65\nThe value of the key 'lion' is"
    )
    assert item.candidates == (" 5", " 33", " 65") and item.answer == 2


def test_a_spaced_continuation_puts_the_space_before_the_value():
    item = KVRetrieval(pairs=2, dictionaries=1, template="continuation", spaced=True).items()[0]
    key = item.question.removesuffix(":")
    assert f"\n{key}:{item.candidates[item.answer]}\n" in item.context
    assert item.candidates[0].startswith(" ") and not item.question.endswith(" ")


def test_seeds_draw_different_dictionaries():
    assert KVRetrieval(seed=1).items() != KVRetrieval(seed=2).items()


def test_a_space_changes_nothing_but_the_space():
    words = tokenizer_of_words()
    plain, spaced = (
        KVRetrieval(pairs=4, dictionaries=2, template="continuation", values="words", single_token=True, spaced=s)
        for s in (False, True)
    )
    for a, b in zip(plain.items(words), spaced.items(words)):
        assert b.context.replace(": ", ":") == a.context and b.question == a.question
        assert [candidate.strip() for candidate in b.candidates] == list(a.candidates)


def tokenizer_of_words():
    """Some nouns are one token with and without a space, one only without; one merges with the colon before it."""
    both = nouns()[:40]
    pieces = ["?", ":", "\n", *both, *(f" {word}" for word in both), nouns()[50], f":{nouns()[60]}", nouns()[60]]
    pattern = Regex(r" ?[a-z]+|:" + nouns()[60] + r"|:|\n|.")
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")


def test_one_token_means_the_same_token_wherever_it_stands():
    words, merging = tokenizer_of_words(), nouns()[60]
    assert is_single_token(words, "\n", nouns()[3], ":") and is_single_token(words, ":", " " + nouns()[3], "\n")
    assert words.tokenize(":" + merging + "\n") == [":" + merging, "\n"]
    assert not is_single_token(words, ":", merging, "\n")


def test_queries_asks_that_many_keys_once_each():
    items = KVRetrieval(pairs=10, dictionaries=3, queries=4).items()
    assert len(items) == 12
    assert all(len({i.question for i in items[d : d + 4]}) == 4 for d in (0, 4, 8))


def test_items_become_a_dataset():
    task = KVRetrieval(pairs=3, dictionaries=2)
    rows = task.to_dataset()
    assert rows.num_rows == 6
    assert rows[4]["prompt"] == task.items()[4].prompt and rows[4]["candidates"] == list(task.items()[4].candidates)


def test_describe_is_the_task():
    task = KVRetrieval(pairs=5, template="continuation", seed=7)
    fields = task.describe()
    assert fields.pop("task") == "kv_retrieval"
    assert KVRetrieval(**fields) == task


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pairs": 0}, "pairs\n.*greater than or equal to 2"),
        ({"pairs": 1}, "pairs\n.*greater than or equal to 2"),
        ({"dictionaries": 0}, "dictionaries"),
        ({"template": "poem"}, "'published' or 'continuation'"),
        ({"length": 3}, "length\n.*Extra inputs"),
    ],
)
def test_fields_out_of_range_are_refused_by_name(fields, message):
    with pytest.raises(ValidationError, match=message):
        KVRetrieval(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pairs": len(nouns()) + 1}, f"use at most {len(nouns())}"),
        ({"pairs": 4000, "values": "words"}, f"use at most {len(nouns()) // 2}"),
        ({"pairs": 95}, "pairs=95 needs more distinct values than there are; use at most 90"),
        ({"pairs": 5, "queries": 6}, "queries=6 is more than the 5 keys"),
        ({"single_token": True}, r"single_token=True depends on the tokenizer; call items\(model.tokenizer\)"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_remedy(fields, message):
    with pytest.raises(ValueError, match=message):
        KVRetrieval(**fields).items()


@pytest.mark.parametrize(
    ("candidates", "answer", "message"),
    [
        (("a",), 0, "at least 2 candidates"),
        (("a", "a"), 0, "must differ"),
        (("a", "b"), 2, "answer=2 is not an index"),
    ],
)
def test_an_item_without_a_choice_is_refused(candidates, answer, message):
    with pytest.raises(ValueError, match=message):
        Item("", "q", candidates, answer)
