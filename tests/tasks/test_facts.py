"""The facts: enough of them, fair to every candidate, and the same on every machine."""

import hashlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from retrieval_heads.tasks.facts import KINDS, OPENINGS, Facts, facts_of, share_a_word

from ..oracles import prefix_free

SEEDS = st.integers(-(2**31), 2**31)


def subject(item):
    before, after = OPENINGS[item.group].split("{}")
    assert item.question.startswith(before) and item.question.endswith(after)
    return item.question[len(before) : len(item.question) - len(after)]


def answer(item):
    return item.candidates[item.answer].removeprefix(" ")


def test_there_are_enough_items_of_enough_kinds():
    counts = Counter(item.group for item in Facts().items())
    assert sum(counts.values()) >= 300
    assert set(counts) == set(KINDS) and len(KINDS) >= 3
    assert min(counts.values()) >= 80


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("capital", "France", "Paris"),
        ("capital", "Australia", "Canberra"),
        ("capital", "the United Kingdom", "London"),
        ("currency", "Japan", "yen"),
        ("currency", "China", "yuan"),
        ("currency", "the Netherlands", "euro"),
        ("city", "Mumbai", "India"),
        ("city", "Chicago", "the United States"),
        ("element", "Au", "gold"),
        ("element", "Fe", "iron"),
    ],
)
def test_known_facts(kind, name, expected):
    assert {f.answer for f in facts_of(kind) if f.subject == name} == {expected}


@pytest.mark.parametrize("name", ["Mexico", "Singapore", "Algeria", "Bolivia", "Hong Kong", "Monaco"])
def test_awkward_capitals_are_left_out(name):
    assert name not in {fact.subject for fact in facts_of("capital")}


@pytest.mark.parametrize("kind", KINDS)
def test_each_subject_occurs_once_so_that_it_has_one_answer(kind):
    assert max(Counter(fact.subject for fact in facts_of(kind)).values()) == 1


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_every_item_is_fair(seed):
    for item in Facts(seed=seed).items():
        assert item.context == ""
        assert len(set(item.candidates)) == 4
        assert prefix_free(item.candidates)
        assert all(c.startswith(" ") and c.strip() == c[1:] for c in item.candidates)
        assert not item.prompt.endswith(" ") and item.prompt.isascii()
        assert not any(share_a_word(subject(item), candidate) for candidate in item.candidates)


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_the_seed_moves_the_options_and_nothing_else(seed):
    for item, fact in zip(Facts(seed=seed).items(), [f for kind in KINDS for f in facts_of(kind)], strict=True):
        assert (subject(item), answer(item)) == (fact.subject, fact.answer)
        region = {f.answer for f in facts_of(item.group) if f.region == fact.region}
        assert {c[1:] for c in item.candidates} <= region


def test_equal_seeds_give_equal_items_and_different_seeds_do_not():
    assert Facts(seed=1).items() == Facts(seed=1).items()
    assert Facts(seed=1).items() != Facts(seed=2).items()
    assert Facts(seed=1, per_kind=20).items() != Facts(seed=2, per_kind=20).items()


def test_items_do_not_depend_on_the_machine():
    # Computed once. A new version of a data package may change it; nothing else should.
    items = "\n".join(map(repr, Facts().items()))
    assert hashlib.sha256(items.encode()).hexdigest()[:16] == "f85b8c86f362d276"


def test_the_place_of_the_answer_is_uniform():
    for seed in range(3):
        items = Facts(seed=seed).items()
        counts = Counter(item.answer for item in items)
        expected = len(items) / 4
        chi_squared = sum((counts[place] - expected) ** 2 / expected for place in range(4))
        assert chi_squared < 16.3  # 3 degrees of freedom, p = 0.001


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.integers(1, 80), st.permutations(KINDS), st.integers(1, len(KINDS)))
def test_a_subset_takes_its_items_from_the_whole(seed, per_kind, order, number):
    kinds = tuple(order[:number])
    items = Facts(seed=seed, per_kind=per_kind, kinds=kinds).items()
    assert [item.group for item in items] == [kind for kind in kinds for _ in range(per_kind)]
    assert len(set(items)) == len(items)
    assert set(items) <= set(Facts(seed=seed).items())


def test_all_of_a_kind_can_be_asked_for_by_number():
    everything = len(facts_of("element"))
    assert Facts(kinds=("element",), per_kind=everything).items() == Facts(kinds=("element",)).items()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kinds": ("capital", "river")}, "'river', which is not one of capital, currency, city, element"),
        ({"kinds": ()}, "kinds is empty; name at least one of capital"),
        ({"kinds": ("city", "city")}, "names 'city' twice"),
        ({"per_kind": 0}, "per_kind=0 is below 1"),
        ({"per_kind": -3}, "per_kind=-3 is below 1"),
        ({"per_kind": 1000}, "per_kind=1000 is more than the 81 facts of kind 'element'"),
        ({"per_kind": 1000, "kinds": ("city",)}, "facts of kind 'city'; ask for at most that many"),
        ({"number": 3}, "number"),
    ],
)
def test_bad_fields_are_refused_by_name(fields, message):
    with pytest.raises(ValidationError, match=message):
        Facts(**fields)


def test_to_dataset_keeps_every_item():
    task = Facts(seed=4, per_kind=5)
    rows = task.to_dataset().to_list()
    items = task.items()
    assert [row["prompt"] for row in rows] == [item.prompt for item in items]
    assert [tuple(row["candidates"]) for row in rows] == [item.candidates for item in items]
    assert [(row["answer"], row["group"]) for row in rows] == [(item.answer, item.group) for item in items]


def test_a_task_can_be_made_again_from_its_description():
    task = Facts(seed=4, per_kind=5, kinds=("city", "capital"))
    described = task.describe()
    assert described.pop("task") == "facts"
    assert Facts(**described) == task


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [
        ("Guatemala", "Guatemala City", True),
        ("Brazil", "Brasilia", True),
        ("Guinea-Bissau", "Bissau", True),
        ("France", "Paris", False),
        ("Au", "gold", False),
        ("Al", "aluminum", False),  # a symbol is no word of its element's name
    ],
)
def test_share_a_word(a, b, shared):
    assert share_a_word(a, b) is shared
    assert share_a_word(b, a) is shared
