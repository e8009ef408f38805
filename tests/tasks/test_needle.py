"""Needles: where they are hidden, in which filler, and what marks them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval_heads.tasks import needle as needle_module
from retrieval_heads.tasks.needle import Needle

ESSAYS = tuple(f"Sentence {i} says {'much ' * (i % 7)}of it." for i in range(40))


class Words:
    """A tokenizer with one token a word."""

    def __call__(self, text, add_special_tokens):
        return type("Encoded", (), {"input_ids": text.split()})


@pytest.fixture(autouse=True)
def essays(monkeypatch):
    monkeypatch.setattr(needle_module, "_sentences", lambda: ESSAYS)


def spans(item):
    return [(name, item.prompt[start:end]) for name, start, end in item.marks]


@pytest.mark.parametrize("filler", ["world", "essays"])
def test_the_prompt_marks_its_haystack_and_its_needle_each_time_it_is_read(filler):
    for item in Needle(tokens=30, prompts=5, candidates=2, read_twice=True, filler=filler).items(Words()):
        parts = spans(item)
        assert parts[:2] == parts[2:] and [name for name, _ in parts[:2]] == ["haystack", "needle"]
        (_, haystack), (_, needle) = parts[:2]
        assert needle.startswith("The password of the ") and needle.endswith(f"{item.candidates[item.answer]}.")
        assert haystack.count(needle) == 1 and item.prompt.count(needle) == 2
        assert item.prompt.startswith(haystack + "\nWhat is the password of the ")


@settings(max_examples=25, deadline=None)
@given(st.integers(9, 150), st.integers(0, 9))
def test_essays_are_as_long_as_asked_to_the_nearest_sentence_and_in_their_order(tokens, seed):
    for item in Needle(tokens=tokens, prompts=2, filler="essays", seed=seed).items(Words()):
        (_, haystack), (_, needle) = spans(item)
        before, after = haystack.split(needle)
        rest = f"{before.strip()} {after.strip()}".strip()
        assert abs(len(rest.split()) - tokens) <= max(len(each.split()) for each in ESSAYS) / 2
        assert rest in " ".join(ESSAYS * 2)


def test_essays_without_a_tokenizer_are_refused():
    with pytest.raises(ValueError, match="give the model's tokenizer"):
        Needle(filler="essays").items()
