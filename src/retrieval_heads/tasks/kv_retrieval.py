"""KV retrieval: a dictionary of random pairs, then a question about one key (paper A, section 3.5)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from .items import Item, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

INTRODUCTION = "Memorize the following dictionary:\n"


class KVRetrieval(Task):
    """Dictionaries of ``pairs`` random pairs; each asks for the values of its own keys.

    Two templates. ``published`` is the papers' (released code of papers A and C): the question is
    a sentence, ``The value of the key 'KEY' is``. ``continuation`` ends the prompt with ``KEY:``,
    one more line of the dictionary; a small base model answers it far better. Neither puts a
    space after a line's colon, unless ``spaced`` (paper A, appendix A.5, compares the two).

    Keys are distinct nouns from the ``wonderwords`` list, those that the tokenizer knows. Values are distinct
    integers 0–99 (``numbers``) or distinct nouns that are not keys (``words``). **No value begins
    another**: a candidate's score is the sum of its tokens' log-probabilities, so ``1`` would always score
    at least as high as ``12``; the values are therefore drawn prefix-free. Because of that a
    dictionary of numbers holds at most 90 pairs, and only then no one-digit value.

    Args:
        pairs: lines of a dictionary, at least 2.
        dictionaries: how many dictionaries.
        queries: keys asked of each dictionary, without repetition; None asks every key.
        single_token: only words that are one token of the tokenizer wherever they may stand, with
            a space before them and without, so that ``spaced`` changes nothing else; then ``items``
            needs the tokenizer.

    >>> task = KVRetrieval(pairs=2, dictionaries=1, template="continuation", seed=1)
    >>> item = task.items()[0]
    >>> print(item.prompt)
    Memorize the following dictionary:
    claim:97
    prohibition:8
    claim:
    >>> item.candidates[item.answer]
    '97'
    """

    name: ClassVar[str] = "kv_retrieval"

    pairs: int = Field(20, ge=2)
    dictionaries: int = Field(12, ge=1)
    queries: int | None = Field(None, ge=1)
    template: Literal["published", "continuation"] = "published"
    values: Literal["numbers", "words"] = "numbers"
    spaced: bool = False
    single_token: bool = False

    def items(self, tokenizer: PreTrainedTokenizerBase | None = None) -> list[Item]:
        """``dictionaries × queries`` items; those of one dictionary follow one another.

        Raises:
            ValueError: more pairs than there are words or numbers, more queries than pairs, or
                ``single_token`` without a tokenizer.
        """
        if self.queries is not None and self.queries > self.pairs:
            raise ValueError(f"queries={self.queries} is more than the {self.pairs} keys of a dictionary; lower it")
        keys, values = self._vocabulary(tokenizer)
        rng = random.Random(self.seed)
        return [item for _ in range(self.dictionaries) for item in self._dictionary(keys, values, rng)]

    def counterfactual(self, item: Item) -> Item:
        """The same question of the same dictionary, but the right value has changed places with the next line's.

        >>> item = Item(INTRODUCTION + "cat:7\\ndog:3\\n", "dog:", ("7", "3"), answer=1)
        >>> other = KVRetrieval(pairs=2).counterfactual(item)
        >>> other.context.splitlines()[1:], other.candidates[other.answer]
        (['cat:3', 'dog:7'], '7')
        """
        lines = item.context.split("\n")
        first = INTRODUCTION.count("\n")  # a candidate for each line, in their order
        other = (item.answer + 1) % len(item.candidates)
        (key, right), (beside, wrong) = (lines[first + i].split(":") for i in (item.answer, other))
        lines[first + item.answer], lines[first + other] = f"{key}:{wrong}", f"{beside}:{right}"
        return replace(item, context="\n".join(lines), answer=other)

    def _dictionary(self, keys: list[str], values: list[str], rng: random.Random) -> Iterator[Item]:
        """The items of one random dictionary."""
        words = rng.sample(keys, self.pairs)
        chosen = draw_prefix_free(values, self.pairs, rng, exclude=words)
        space = " " if self.spaced else ""
        context = INTRODUCTION + "".join(f"{key}:{space}{value}\n" for key, value in zip(words, chosen))
        # After the sentence 'is' a value needs its space in either spelling.
        lead = " " if self.template == "published" else space
        for i in rng.sample(range(self.pairs), self.queries or self.pairs):
            sentence = f"The value of the key '{words[i]}' is"
            question = sentence if self.template == "published" else f"{words[i]}:"
            yield Item(context, question, tuple(lead + value for value in chosen), answer=i)

    def _vocabulary(self, tokenizer: PreTrainedTokenizerBase | None) -> tuple[list[str], list[str]]:
        """The keys and the values that a dictionary may use."""
        keys = list(nouns()) if tokenizer is None else [word for word in nouns() if is_known(tokenizer, word)]
        if self.single_token:
            if tokenizer is None:
                raise ValueError("single_token=True depends on the tokenizer; call items(model.tokenizer)")
            keys = [word for word in keys if is_single_token(tokenizer, "\n", word, ":")]
            places = [(":", ""), (":", " "), ("is", " ")]  # what may stand before a value
        values = keys if self.values == "words" else [str(number) for number in range(100)]
        if self.single_token and self.values == "words":
            values = [w for w in keys if all(is_single_token(tokenizer, a, space + w, "\n") for a, space in places)]
        # A dictionary of words uses each word once, as a key or as a value.
        available = len(keys) // 2 if self.values == "words" else len(keys)
        if self.pairs > available:
            raise ValueError(f"pairs={self.pairs} needs more words than there are; use at most {available}")
        return keys, values


@cache
def nouns() -> tuple[str, ...]:
    """The lower-case alphabetic nouns of ``wonderwords``, sorted."""
    from wonderwords import RandomWord

    words = RandomWord().filter(include_parts_of_speech=["nouns"])
    return tuple(sorted({word for word in words if word.isascii() and word.isalpha() and word.islower()}))


def is_known(tokenizer: PreTrainedTokenizerBase, word: str) -> bool:
    """Whether the tokenizer can write the word; one made of whole words knows only those."""
    return tokenizer.unk_token_id is None or tokenizer.unk_token_id not in tokenizer.encode(
        word, add_special_tokens=False
    )


def is_single_token(tokenizer: PreTrainedTokenizerBase, before: str, word: str, after: str) -> bool:
    """Whether ``word`` is one token between ``before`` and ``after``, which stay the tokens that they are alone."""
    texts = [before, before + word, before + word + after, after]
    start, middle, whole, end = tokenizer(texts, add_special_tokens=False).input_ids
    return middle[:-1] == start and whole == middle + end


def draw_prefix_free(values: list[str], count: int, rng: random.Random, exclude: list[str]) -> list[str]:
    """``count`` random values of which none begins another and none is excluded.

    Raises:
        ValueError: the values cannot supply that many.
    """
    excluded, chosen = set(exclude), []
    pool = rng.sample(values, len(values))
    # Short values block many long ones. A second round without the short ones fills what they blocked.
    for candidates in (pool, [value for value in pool if len(value) > 1]):
        chosen = []
        for value in candidates:
            if value not in excluded and not any(value.startswith(c) or c.startswith(value) for c in chosen):
                chosen.append(value)
                if len(chosen) == count:
                    return chosen
    raise ValueError(f"pairs={count} needs more distinct values than there are; use at most {len(chosen)}")
