from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_heads.heads import KINDS, Head, HeadSet

any_head = st.builds(Head, st.integers(0, 200), st.integers(0, 9000), st.sampled_from(KINDS))


@given(any_head)
def test_a_head_is_read_back_as_it_is_written(head):
    assert Head.parse(str(head)) == head


@given(st.lists(any_head), st.lists(any_head))
def test_sets_of_heads_are_sets(left, right):
    a, b = HeadSet(left), HeadSet(right)
    assert set(a | b) == set(left) | set(right)
    assert set(a - b) == set(left) - set(right)
    assert list(a) == sorted(set(left))
    assert (a == b) == (set(left) == set(right))
    if a == b:
        assert hash(a) == hash(b)


@pytest.mark.parametrize("text", ["16.22", "L16", "H22L16", "L-1H2", "L1H2:", ""])
def test_what_is_no_head_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="write layer and index like L16H22"):
        Head.parse(text)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind='neuron' is not one of attention"):
        Head(0, 0, "neuron")


def test_one_head_is_not_a_set():
    with pytest.raises(TypeError, match=r"HeadSet\(\['L1H2'\]\)"):
        HeadSet("L1H2")
