"""Needle in a haystack: one sentence that matters, hidden in filler, and a question about it at the end."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from .items import Item, Task
from .running_text import RunningText
from .world import World, world

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SENTENCE_TOKENS = 9  # of filler, the full stop included
NEEDLE = "The password of the {} is {}."
QUESTION = "\nWhat is the password of the {}?\nThe password of the {} is"


class Needle(Task):
    """A needle in filler, with other needles' answers as the other candidates.

    Each prompt marks its needle and its haystack.

    Args:
        tokens: length of the haystack without its needle, to the nearest sentence: in the world's tokens, or, of
            essays, in those of the tokenizer that :meth:`items` is given.
        depth: where the needle is, 0 the end of the prompt and 1 its start, as paper B draws it
            (Figs 4, 5); None draws it anew for each prompt.
        prompts: how many.
        candidates: answers to choose from, the right one among them.
        read_twice: the whole prompt is given twice (Just Read Twice, paper B).
        filler: ``"world"``, sentences of the small world, or ``"essays"``, those of :class:`.RunningText` from a random
            one on, for models that read English.
        world_seed: which world; its nouns are what needles are about, in essays too.
        seed: draws filler, needles and depths.

    >>> print(Needle(tokens=9, depth=0, prompts=1, candidates=2, seed=1).items()[0].prompt)
    The strange cart rolled along the slow tower. The password of the comfort is boxspring.
    What is the password of the comfort?
    The password of the comfort is
    """

    name: ClassVar[str] = "needle"

    tokens: int = Field(256, ge=SENTENCE_TOKENS)
    depth: float | None = Field(None, ge=0, le=1)
    prompts: int = Field(100, ge=1)
    candidates: int = Field(16, ge=2)
    read_twice: bool = False
    filler: Literal["world", "essays"] = "world"
    world_seed: int = 0

    def items(self, tokenizer: PreTrainedTokenizerBase | None = None) -> list[Item]:
        """One item a prompt.

        Raises:
            ValueError: essays without a tokenizer to measure them.
        """
        if self.filler == "essays" and tokenizer is None:
            raise ValueError("the length of a haystack of essays is in tokens: give the model's tokenizer")
        here, rng = world(self.world_seed), random.Random(self.seed)
        return [self.hide(here, rng, tokenizer) for _ in range(self.prompts)]

    def hide(self, here: World, rng: random.Random, tokenizer: PreTrainedTokenizerBase | None = None) -> Item:
        """One haystack with its needle."""
        about, *values = rng.sample(here.nouns, 1 + self.candidates)
        answer = rng.randrange(self.candidates)
        if self.filler == "world":
            sentences = here.filler(round(self.tokens / SENTENCE_TOKENS), rng)
        else:
            sentences = _passage(self.tokens, rng, tokenizer)
        depth = rng.random() if self.depth is None else self.depth
        needle = NEEDLE.format(about, values[answer])
        sentences.insert(round((1 - depth) * len(sentences)), needle)
        haystack = " ".join(sentences)
        at = haystack.index(needle)
        marks = [("haystack", 0, len(haystack)), ("needle", at, at + len(needle))]
        prompt = haystack + QUESTION.format(about, about)
        if self.read_twice:
            second = len(prompt) + 1
            marks += [(name, second + start, second + end) for name, start, end in marks]
            prompt = read_twice(prompt)
        return Item("", prompt, tuple(f" {value}" for value in values), answer, marks=tuple(marks))


def read_twice(prompt: str) -> str:
    """The prompt, and the prompt again: Just Read Twice (Arora et al., 2024; paper B, section 4)."""
    return f"{prompt}\n{prompt}"


def _passage(tokens: int, rng: random.Random, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Successive sentences of the essays, about ``tokens`` tokens of them."""
    sentences = _sentences()
    first, taken, length = rng.randrange(len(sentences)), [], 0
    while True:
        sentence = sentences[(first + len(taken)) % len(sentences)]
        more = len(tokenizer(f" {sentence}", add_special_tokens=False).input_ids)
        if abs(length - tokens) <= abs(length + more - tokens):
            return taken
        taken.append(sentence)
        length += more


@cache
def _sentences() -> tuple[str, ...]:
    """The essays' sentences, their line breaks as spaces."""
    text = re.sub(r"\s+", " ", RunningText().text())
    return tuple(re.split(r"(?<=[.?!]) (?=[A-Z])", text.strip()))
