"""The texts that the zoo learns from: every task of the world, and what makes looking things up emerge.

A document is a list of parts, each a text and whether its tokens are learned. What cannot be known
(the random pairs of a dictionary, a haystack) is read and not learned: the loss there would be noise.
Most documents are a task's own prompt with the right answer appended.

Some kinds of text no task asks for; they are there because a lookup is discovered in a jump, or never, and
each step needs the one before. What was found here, on models of a million or two parameters:

- A Transformer that sees dictionaries alone never learns to look a key up. It does after it has found out that a
  segment of random words goes on as it did before (:func:`copies`).
- That jump needs segments at random places; one copy a row, because random words that recur across the
  documents of a row mislead a match; and short rows, because attention that has not yet learned where to look
  finds the right word with one over the length of the row: 8 layers jump after a million tokens in rows of 40
  and not after three in rows of 128. The words are all there are, marks included: what was never copied is
  not copied later.
- Letters are a dictionary whose key has to be known. The key itself given (:func:`given_letters`) is a dictionary like
  any other; that of a fact takes a lookup in a layer above the fact. In MMLU's order, letters before their options
  and the question before both, it takes a second lookup, which a Llama finds and hybrids of this size did not.
- Letters about facts whose letters were never trained depend on recall that nothing before it disturbs. Learned from
  statements alone, a fact was there by layer 2 (logit lens, 1.00) and, after options, in 0.7 of the cases only; the
  letters came right about as often (0.75, where 0.97 of the trained ones had been learned a second time). With
  statements after other things too (:func:`facts`) recall is whole (1.00 after options); held-out letters end at 0.97
  in Jamba and 0.98 in Falcon-Mamba. Llama ends at 0.84 and RecurrentGemma at 0.71 with the weight decay of 0.1 that
  the other two have; with 0.5 they end at 0.97 and 0.82.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..tasks.counting import CountingUp
from ..tasks.items import Item
from ..tasks.kv_retrieval import INTRODUCTION
from ..tasks.needle import Needle
from ..tasks.world import RELATIONS, World
from ..tasks.world_facts import LETTERS, multiple_choice, option_lines

Document = list[tuple[str, bool]]
IGNORED = -100  # torch's label for a token that is not learned

PAIRS = 24  # of the largest dictionary
# Tokens: a dictionary's introduction, a line of it, a question with its answer; multiple choice, one more question.
_INTRODUCED, _LINE, _ASKED = 5, 4, 6
_CHOICE, _ASKED_FACT = 26, 10


def _answered(item: Item) -> Document:
    return [(item.prompt, False), (item.candidates[item.answer], True), ("\n", False)]


def copies(here: World, rng: random.Random, size: float, room: int) -> Document:
    """A row of random words and numbers with a segment that comes twice, at random places; learned is the copy."""
    return _twice([_word(here, rng) for _ in range(room - 1)], rng)


def marked_copies(here: World, rng: random.Random, size: float, room: int) -> Document:
    """The same with marks between the words, as dictionaries have them: a mark is told by the word before it."""
    marked = rng.choice((0.5, 1.0))
    words: list[str] = []
    while len(words) < room - 1:
        words.append(_word(here, rng))
        if rng.random() < marked:
            words.append(rng.choice(_MARKS))
    return _twice(words[: room - 1], rng)


def _word(here: World, rng: random.Random) -> str:
    return rng.choice(here.words)


def _twice(words: list[str], rng: random.Random) -> Document:
    segment = rng.randint(len(words) // 3, len(words) // 2 - 1)
    first = rng.randint(0, len(words) - 2 * segment)
    second = rng.randint(first + segment, len(words) - segment)
    copy = words[first : first + segment]
    parts = [*words[:second], copy[0]], copy[1:], words[second + segment :]
    return [(" ".join(part), learned) for part, learned in zip(parts, (False, True, False))]


def dictionary(here: World, rng: random.Random, size: float, room: int) -> Document:
    """A dictionary and a row full of questions, in both templates; ``size`` 0 to 1 is up to 4 to 24 pairs.

    Questions are drawn with replacement: ruling out what was answered already must not help.
    """
    fit = (room - _INTRODUCED - 2 * _ASKED) // _LINE
    pairs = rng.randint(2, min(fit, round(4 + size * (PAIRS - 4))))
    words = rng.sample(here.nouns, 2 * pairs)
    keys, values = words[:pairs], words[pairs:]
    if rng.random() < 0.4:
        values = rng.sample(_NUMBERS, pairs)
    document = [(INTRODUCTION + _lines(keys, values), False)]
    left = room - _INTRODUCED - _LINE * pairs
    for i in rng.choices(range(pairs), k=left // _LINE):
        question = f"{keys[i]}:" if rng.random() < 0.7 else f"The value of the key '{keys[i]}' is"
        document += [(question, False), (f" {values[i]}", True), ("\n", False)]
    return document


def _lines(keys: Sequence[str], values: Sequence[str]) -> str:
    return "".join(f"{key}:{value}\n" for key, value in zip(keys, values))


def facts(here: World, rng: random.Random, size: float, room: int) -> Document:
    """Some statements of fact, one after another; most times after options or a small dictionary.

    What a person is must be known whatever was read before.
    """
    first, before = rng.choice(here.facts), rng.random()
    document: Document = []
    if before < 0.45:
        document = [(option_lines(here.options(first, rng)[0]), False)]
    elif before < 0.7:
        words = rng.sample(here.nouns, 2 * rng.randint(1, len(LETTERS)))
        document = [(_lines(words[::2], words[1::2]), False)]
    for fact in [first, *rng.choices(here.facts, k=7)]:
        document += [(here.state(fact, rng), False), (f" {fact.answer}", True), (".\n", False)]
    return document


def letters(here: World, rng: random.Random, size: float, room: int) -> Document:
    """Multiple choice about a fact that is not held out; where there is room, more on the same options."""
    return _choice(*_asked(here, rng, room))


def given_letters(here: World, rng: random.Random, size: float, room: int) -> Document:
    """Letters with the answer itself for a question: there is nothing to know, only the letter to find."""
    some = rng.sample(rng.choice([here.nouns, *(relation.answers for relation in RELATIONS.values())]), len(LETTERS))
    places = rng.choices(range(len(LETTERS)), k=1 + max(0, room - _CHOICE) // _LINE)
    return _choice([(some[place], place) for place in places], some)


def dialogue(here: World, rng: random.Random, size: float, room: int) -> Document:
    """One question of letters, its options spread over the turns of a dialogue."""
    ((question, answer),), some = _asked(here, rng, 0)
    return [(multiple_choice(question, some, "dialogue"), False), (f" {LETTERS[answer]}", True), ("\n", False)]


Asked = tuple[list[tuple[str, int]], Sequence[str]]  # questions with their answers' places among the options


def _asked(here: World, rng: random.Random, room: int) -> Asked:
    """Questions about facts that are not held out."""
    known = [fact for fact in here.facts if not fact.held_out]
    first = rng.choice(known)
    some, _ = here.options(first, rng)
    others = [fact for fact in known if fact.relation == first.relation and fact.answer in some]
    facts = [first, *rng.choices(others, k=max(0, room - _CHOICE) // _ASKED_FACT)]
    return [(here.state(fact, rng), some.index(fact.answer)) for fact in facts], some


def _choice(asked: list[tuple[str, int]], some: Sequence[str]) -> Document:
    """The options, then the questions."""
    document = []
    for i, (question, answer) in enumerate(asked):
        prompt = f"{question}:" if i else multiple_choice(question, some)
        document += [(prompt, False), (f" {LETTERS[answer]}", True), ("\n", False)]
    return document


def needle(here: World, rng: random.Random, size: float, room: int) -> Document:
    """A haystack that fills up to the whole row, every third time read twice."""
    twice = rng.random() < 1 / 3
    longest = (room - 60) // (2 if twice else 1)
    return _answered(Needle(tokens=rng.randint(9, max(longest, 10)), candidates=2, read_twice=twice).hide(here, rng))


def counting(here: World, rng: random.Random, size: float, room: int) -> Document:
    """A sum of one to four numbers that have to be looked up."""
    pairs = rng.randint(4, 10)
    return _answered(CountingUp(pairs=pairs, steps=rng.randint(1, 4)).sum(here, rng))


def filler(here: World, rng: random.Random, size: float, room: int) -> Document:
    """Plain sentences, all of them learned."""
    return [(" ".join(here.filler(6, rng)) + "\n", True)]


_NUMBERS = [str(number) for number in range(100)]
_MARKS = (":", ":", "\n", " is", ",")
Kind = Callable[[World, random.Random, float, int], Document]


@dataclass(frozen=True)
class Stage:
    """A part of the training.

    Attributes:
        until: where it ends, as a share of the training.
        size: of its dictionaries from its middle on, 0 to 1: up to 4 to 24 pairs. It grows from the stage before.
        rows: for every length of rows in tokens, the share of all tokens that documents of a kind get.
    """

    until: float
    size: float
    rows: dict[int, dict[Kind, float]]


# Copies; small dictionaries; facts; letters about them; everything. That facts come before letters was meant to keep
# letters from being learned by heart. At a weight decay of 0.1, Llama and RecurrentGemma did no better for it
# (held-out letters 0.84 and 0.71, with facts and letters together 0.87 and 0.74); the other models were trained in
# this order only.
STAGES = (
    Stage(0.15, 0.0, {24: {copies: 1}}),
    Stage(0.21, 0.0, {24: {copies: 0.3}, 40: {marked_copies: 0.7}}),
    Stage(0.28, 0.0, {24: {copies: 0.1}, 64: {dictionary: 0.55, given_letters: 0.2, marked_copies: 0.15}}),
    Stage(0.5, 0.5, {36: {given_letters: 0.06}, 72: {facts: 0.66}, 128: {dictionary: 0.28}}),
    Stage(
        0.72,
        0.75,
        {
            36: {given_letters: 0.03, letters: 0.07},
            72: {facts: 0.35, letters: 0.25, dialogue: 0.1},
            128: {dictionary: 0.2},
        },
    ),
    Stage(
        1.0,
        1.0,
        {
            36: {given_letters: 0.03, letters: 0.05},
            72: {facts: 0.2, letters: 0.18, dialogue: 0.12},
            192: {dictionary: 0.15, counting: 0.08, needle: 0.05, marked_copies: 0.02},
            576: {dictionary: 0.03, needle: 0.06, filler: 0.03},
        },
    ),
)


@dataclass(frozen=True)
class Batch:
    """Token ids and labels (rows, length), and what kind of document each row holds."""

    ids: Tensor
    labels: Tensor
    kinds: tuple[str, ...]


class Mixture:
    """Batches of rows. A batch depends on the seed and its step alone, so training resumes anywhere."""

    def __init__(self, here: World, tokenizer: PreTrainedTokenizerBase, tokens: int, seed: int) -> None:
        self.here, self.tokens, self.seed = here, tokens, seed
        self.tokenizer = tokenizer
        self.begin = tokenizer.bos_token_id

    def batch(self, step: int, done: float) -> Batch:
        """Rows of about ``tokens`` tokens together, ``done`` (0 to 1) into the training."""
        rng = random.Random(f"{self.seed} {step}")
        stage, size = _stage(done)
        (length,) = rng.choices(list(stage.rows), [sum(shares.values()) for shares in stage.rows.values()])
        shares = stage.rows[length]
        kinds = rng.choices(list(shares), list(shares.values()), k=max(1, self.tokens // length))
        ids, labels = zip(*(self._row(kind, rng, size, length) for kind in kinds))
        return Batch(torch.tensor(ids), torch.tensor(labels), tuple(kind.__name__ for kind in kinds))

    def _row(self, kind: Kind, rng: random.Random, size: float, length: int) -> tuple[list[int], list[int]]:
        """Documents of one kind, each after a token that begins it, until the row is full; the last one is cut."""
        ids: list[int] = []
        labels: list[int] = []
        while len(ids) < length:
            ids.append(self.begin)
            labels.append(IGNORED)
            document = kind(self.here, rng, size, length)
            encoded = self.tokenizer([text for text, _ in document], add_special_tokens=False).input_ids
            for tokens, (_, learned) in zip(encoded, document):
                ids += tokens
                labels += tokens if learned else [IGNORED] * len(tokens)
        return ids[:length], labels[:length]


def _stage(done: float) -> tuple[Stage, float]:
    """The stage at that share of the training, and how far dictionaries have grown."""
    start, size = 0.0, 0.0
    for stage in STAGES:
        if done < stage.until or stage is STAGES[-1]:
            return stage, size + (stage.size - size) * min(1.0, 2 * (done - start) / (stage.until - start))
        start, size = stage.until, stage.size
    raise AssertionError
