"""The texts that the zoo learns from: every task of the world, and what makes looking things up emerge.

A document is a list of parts, each a text and whether its tokens are learned. What cannot be known
(the random pairs of a dictionary, a haystack) is read and not learned: the loss there would be noise.
Most documents are a task's own prompt with the right answer appended.

Copies are the one kind of text that no task asks for. A small Transformer that sees dictionaries
alone never learns to look a key up; it does after it has found out that a segment of random words,
seen before anywhere in the text, goes on as it did then.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..tasks.counting import CountingUp
from ..tasks.items import Item
from ..tasks.kv_retrieval import INTRODUCTION
from ..tasks.needle import Needle
from ..tasks.world import RELATIONS, World
from ..tasks.world_facts import WorldLetters

Document = list[tuple[str, bool]]
IGNORED = -100  # torch's label for a token that is not learned

PAIRS = 24  # of the largest dictionary
QUERIES = 10  # of a dictionary, drawn with replacement: ruling out what was answered must not help


def _answered(item: Item) -> Document:
    return [(item.prompt, False), (item.candidates[item.answer], True), ("\n", False)]


def copies(here: World, rng: random.Random, size: float, room: int) -> Document:
    """A segment of random words, repeated once after a random gap; all drawn anew for each document."""
    segment, start, gap = rng.randint(4, 40), rng.randint(0, 20), rng.randint(0, 30)
    words = rng.choices(here.nouns, k=start + segment + gap)
    again = words[start : start + segment]
    return [(" ".join([*words, again[0]]), False), (" " + " ".join(again[1:]), True)]


def dictionary(here: World, rng: random.Random, size: float, room: int) -> Document:
    """A dictionary of numbers or words and questions in both templates; ``size`` 0 to 1 is up to 4 to 24 pairs."""
    pairs = rng.randint(2, round(4 + size * (PAIRS - 4)))
    words = rng.sample(here.nouns, 2 * pairs)
    keys, values = words[:pairs], words[pairs:]
    if rng.random() < 0.4:
        values = [str(number) for number in rng.sample(range(100), pairs)]
    document = [(INTRODUCTION + "".join(f"{key}:{value}\n" for key, value in zip(keys, values)), False)]
    for i in rng.choices(range(pairs), k=QUERIES):
        question = f"{keys[i]}:" if rng.random() < 0.7 else f"The value of the key '{keys[i]}' is"
        document += [(question, False), (f" {values[i]}", True), ("\n", False)]
    return document


def facts(here: World, rng: random.Random, size: float, room: int) -> Document:
    """Some statements of fact, one after another."""
    document = []
    for fact in rng.choices(here.facts, k=8):
        phrasing = rng.choice(RELATIONS[fact.relation].phrasings)
        document += [(phrasing.format(fact.person), False), (f" {fact.answer}", True), (".\n", False)]
    return document


def letters(here: World, rng: random.Random, size: float, room: int) -> Document:
    """Multiple choice about a fact that is not held out."""
    return _choice(here, rng, "block")


def dialogue(here: World, rng: random.Random, size: float, room: int) -> Document:
    """The same, spread over the turns of a dialogue."""
    return _choice(here, rng, "dialogue")


def _choice(here: World, rng: random.Random, form: str) -> Document:
    task = WorldLetters(form=form, which="trained")
    return _answered(task.ask(here, rng.choice([fact for fact in here.facts if not fact.held_out]), rng))


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


# How often a document is of a kind, at the start of the training and when dictionaries are full-grown. In tokens,
# copies are half of what is read at first; later dictionaries are a third, facts and letters a seventh each.
SHARES: dict[Callable[[World, random.Random, float, int], Document], tuple[float, float]] = {
    copies: (8, 2),
    dictionary: (4, 4),
    facts: (1, 3),
    letters: (1, 5),
    dialogue: (0, 1),
    needle: (0, 1),
    counting: (0, 1),
    filler: (0.2, 0.5),
}
# Lengths of the rows, and how often a step has them.
ROWS = {128: 0.55, 256: 0.3, 576: 0.15}


class Mixture:
    """Batches of packed documents. A batch depends on the seed and its step alone, so training resumes anywhere."""

    def __init__(self, here: World, tokenizer: PreTrainedTokenizerBase, tokens: int, seed: int) -> None:
        self.here, self.tokens, self.seed = here, tokens, seed
        self.vocabulary, self.tokenizer = tokenizer.get_vocab(), tokenizer
        self.begin = tokenizer.bos_token_id

    def batch(self, step: int, size: float) -> tuple[Tensor, Tensor]:
        """Token ids and labels (rows, length) of about ``tokens`` tokens; ``size``, 0 to 1, grows dictionaries."""
        rng = random.Random(f"{self.seed} {step}")
        (length,) = rng.choices(list(ROWS), list(ROWS.values()))
        rows = [self._row(rng, size, length) for _ in range(max(1, self.tokens // length))]
        ids, labels = zip(*rows)
        return torch.tensor(ids), torch.tensor(labels)

    def _row(self, rng: random.Random, size: float, length: int) -> tuple[list[int], list[int]]:
        """Documents, each after a token that begins it, until the row is full; the last one is cut."""
        ids: list[int] = []
        labels: list[int] = []
        while len(ids) < length:
            (kind,) = rng.choices(list(SHARES), [(1 - size) * first + size * last for first, last in SHARES.values()])
            ids.append(self.begin)
            labels.append(IGNORED)
            document = kind(self.here, rng, size, length)
            encoded = self.tokenizer([text for text, _ in document], add_special_tokens=False).input_ids
            for tokens, (_, learned) in zip(encoded, document):
                ids += tokens
                labels += tokens if learned else [IGNORED] * len(tokens)
        return ids[:length], labels[:length]
