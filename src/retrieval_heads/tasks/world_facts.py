"""What is true of the world's people: to be completed, to be chosen by its letter, or to be chosen in a dialogue."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from .items import Item, Task
from .world import World, WorldFact, world

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LETTERS = "ABCD"


class _FactTask(Task):
    """Items about some of the world's facts.

    Args:
        world_seed: which world.
        count: how many facts, drawn without replacement; None takes all that there are.
        seed: draws the facts, a phrasing for each, the other options and their order.
    """

    world_seed: int = 0
    count: int | None = Field(None, ge=1)

    def items(self, tokenizer: PreTrainedTokenizerBase | None = None) -> list[Item]:
        """One item a fact.

        Raises:
            ValueError: ``count`` is more than there are facts.
        """
        here, rng = world(self.world_seed), random.Random(self.seed)
        facts = self.facts(here)
        if self.count is not None and self.count > len(facts):
            raise ValueError(f"count={self.count} is more than the {len(facts)} facts there are; lower it")
        return [self.ask(here, fact, rng) for fact in rng.sample(facts, self.count or len(facts))]

    def facts(self, here: World) -> list[WorldFact]:
        return list(here.facts)

    def ask(self, here: World, fact: WorldFact, rng: random.Random) -> Item:
        """The item about one fact."""
        raise NotImplementedError


class WorldFacts(_FactTask):
    """Facts as statements to complete, with four options: knowledge, and nothing to look up.

    >>> item = WorldFacts(count=1, seed=3).items()[0]
    >>> item.question, item.candidates[item.answer], item.group
    ('In the garden of Falbe grows', ' banana', 'fruit')
    """

    name: ClassVar[str] = "world_facts"

    def ask(self, here: World, fact: WorldFact, rng: random.Random) -> Item:
        options, answer = here.options(fact, rng)
        return Item("", here.state(fact, rng), tuple(f" {option}" for option in options), answer, fact.relation)


class WorldLetters(_FactTask):
    """The same facts as multiple choice: knowledge, and then a lookup of the letter that stands by the answer.

    In one ``block``, or as a ``dialogue`` in which the options come one a turn (the conversational form
    of paper A, section 6.3). Which facts: those whose letter form is in the training texts, those
    ``held_out`` from it, or all.

    MMLU asks first and puts a letter before its option. Here the options come first, each before its letter: a
    dictionary, and then a key that has to be known. In MMLU's order hybrids of this size never found the letters.

    >>> print(WorldLetters(count=1, seed=3).items()[0].prompt)
    raspberry: A
    currant: B
    strawberry: C
    melon: D
    In the garden of Kalka grows:
    """

    name: ClassVar[str] = "world_letters"

    form: Literal["block", "dialogue"] = "block"
    which: Literal["held_out", "trained", "all"] = "held_out"

    def facts(self, here: World) -> list[WorldFact]:
        return [f for f in here.facts if self.which == "all" or f.held_out == (self.which == "held_out")]

    def ask(self, here: World, fact: WorldFact, rng: random.Random) -> Item:
        options, answer = here.options(fact, rng)
        prompt = multiple_choice(here.state(fact, rng), options, self.form)
        return Item("", prompt, tuple(f" {letter}" for letter in LETTERS), answer, fact.relation)


def multiple_choice(question: str, options: Sequence[str], form: str = "block") -> str:
    """The options, each with a letter after it, and the question, up to where the answer's letter comes."""
    if form == "block":
        return f"{option_lines(options)}{question}:"
    turns = "\nAssistant: go on\n".join(f"User: {line}" for line in [*option_lines(options).splitlines(), question])
    return f"{turns}\nAssistant:"


def option_lines(options: Sequence[str]) -> str:
    """A line an option, its letter after it."""
    return "".join(f"{option}: {letter}\n" for letter, option in zip(LETTERS, options))
