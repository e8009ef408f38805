"""Counting up: a sum of numbers that have to be looked up, one after another."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from .items import Item, Task
from .kv_retrieval import INTRODUCTION
from .world import World, world

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class CountingUp(Task):
    """A dictionary of digits, some of its keys to add up, and candidates that are whole solutions.

    A miniature of GSM8K and BBH (paper A, section 6.2): every step needs a lookup, and one that goes
    wrong spoils the rest. The wrong candidates each look up another key's digit at one step and count
    on rightly from there. Whether greedy decoding writes the right solution is in the answers, too.

    Args:
        pairs: lines of the dictionary.
        steps: keys to add up, at most ``pairs``.
        prompts: how many dictionaries, each with one question.
        world_seed: which world.
        seed: draws the dictionaries and the questions.

    >>> item = CountingUp(pairs=4, steps=2, prompts=1, seed=2).items()[0]
    >>> print(item.prompt + item.candidates[item.answer])
    Memorize the following dictionary:
    linkage:9
    caper:2
    carrot:0
    blackboard:3
    Count up caper, blackboard.
    caper: 2 makes 2
    blackboard: 3 makes 5.
    """

    name: ClassVar[str] = "counting_up"

    pairs: int = Field(8, ge=4)
    steps: int = Field(3, ge=1)
    prompts: int = Field(100, ge=1)
    world_seed: int = 0

    def items(self, tokenizer: PreTrainedTokenizerBase | None = None) -> list[Item]:
        """One item a dictionary.

        Raises:
            ValueError: more steps than pairs.
        """
        if self.steps > self.pairs:
            raise ValueError(f"steps={self.steps} is more than the {self.pairs} keys of a dictionary; lower it")
        here, rng = world(self.world_seed), random.Random(self.seed)
        return [self.sum(here, rng) for _ in range(self.prompts)]

    def sum(self, here: World, rng: random.Random) -> Item:
        """One dictionary with its question."""
        keys = rng.sample(here.nouns, self.pairs)
        digits = [rng.randrange(10) for _ in keys]
        digits[:4] = rng.sample(range(10), 4)  # enough of them for three wrong solutions
        context = INTRODUCTION + "".join(
            f"{key}:{digit}\n" for key, digit in rng.sample(list(zip(keys, digits)), self.pairs)
        )
        asked = rng.sample(range(self.pairs), self.steps)
        right = [digits[i] for i in asked]
        solutions = {_solution(keys, asked, right): None}
        while len(solutions) < 4:
            step, other = rng.randrange(self.steps), rng.choice(digits)
            solutions[_solution(keys, asked, [*right[:step], other, *right[step + 1 :]])] = None
        first, *_ = solutions
        candidates = rng.sample(list(solutions), len(solutions))
        question = f"Count up {', '.join(keys[i] for i in asked)}.\n"
        return Item(context, question, tuple(candidates), candidates.index(first))


def _solution(keys: list[str], asked: list[int], digits: list[int]) -> str:
    lines, total = [], 0
    for i, digit in zip(asked, digits):
        total += digit
        lines.append(f"{keys[i]}: {digit} makes {total}")
    return "\n".join(lines) + "."
