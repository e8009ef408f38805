"""The grades of written answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_heads.tasks.items import Item
from retrieval_heads.tasks.rubric import HIGHEST, grade

ITEM = Item("", "The password of the fox is", (" blue door", " cat", " The End"), answer=0)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (" Blue door.", 5),
        ("blue door\nand more", 5),
        ("It is blue door", 4),
        ("a door that is blue", 3),
        ("doors", 3),
        ("the cat", 2),
        ("the end", 2),
        ("end", 1),
        ("sea", 1),
        ("\n blue door", 5),
        (" ...\nblue door", 0),
        ("", 0),
    ],
)
def test_the_ladder(written, expected):
    assert grade(written, ITEM) == expected


@given(st.text())
def test_any_text_has_a_grade_and_the_value_before_it_the_highest(text):
    assert 0 <= grade(text, ITEM) <= HIGHEST == grade(f"blue door {text}", ITEM)
