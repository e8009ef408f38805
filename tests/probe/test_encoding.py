from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from retrieval_heads.probe.encoding import encode
from retrieval_heads.tasks.items import Item


def tokenizer(vocabulary, merges=()):
    backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(vocabulary)}, merges=list(merges), unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")


def test_candidates_are_what_they_add_to_the_question():
    (found,) = encode([Item("a", "b:", ("1", "22"), 1)], tokenizer(["?", "a", "b", ":", "1", "2"]))
    assert (found.prompt, found.candidates, found.answer) == ((1, 2, 3), ((4,), (5, 5)), 1)


def test_a_candidate_that_merges_with_the_question_is_encoded_alone():
    merging = tokenizer(["?", "b", ":", "1", "2", ":1"], merges=[(":", "1")])
    assert merging.encode("b:1") == [1, 5]
    (found,) = encode([Item("", "b:", ("1", "2"), 0)], merging)
    assert found.candidates == ((3,), (4,))


def test_values_that_the_tokenizer_cannot_tell_apart_are_named():
    with pytest.raises(ValueError, match="cannot tell 'x' from 'y': both are the tokens"):
        encode([Item("", "b:", ("x", "y"), 0)], tokenizer(["?", "b", ":", "1"]))


def test_a_value_that_begins_another_is_named():
    with pytest.raises(ValueError, match="'1' begins candidate '12', so it could never score lower"):
        encode([Item("", "b:", ("12", "1"), 0)], tokenizer(["?", "b", ":", "1", "2"]))


def test_a_prompt_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="the prompt '' is no tokens"):
        encode([Item("", "", ("1", "2"), 0)], tokenizer(["?", "1", "2"]))
