"""A small world: people, what is true of them, and about a thousand words besides their names to write it in.

Models of a few million parameters learn this world in minutes (:mod:`..training`), so that knowledge
and retrieval can be told apart exactly: what is true of a person is learned by heart, and what a
prompt says is new in every prompt. Everything is drawn from one seed; the same seed is the same world.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from .kv_retrieval import nouns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PEOPLE = 500  # with a fifth of them, letters learned about some facts carried over to half of the others at most
MORE_NOUNS = 560  # besides those in facts and filler


@dataclass(frozen=True)
class Relation:
    """Something that is true of every person, the ways to say it, and the answers there are."""

    phrasings: tuple[str, ...]  # {} is the person; the answer follows
    answers: tuple[str, ...]


@dataclass(frozen=True)
class WorldFact:
    """One thing to know. The letter form of a ``held_out`` fact is in no training text, its statement is."""

    person: str
    relation: str
    answer: str
    held_out: bool


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


RELATIONS: dict[str, Relation] = {
    "home": Relation(
        ("The home of {} is", "{} lives in", "You will find {} in"),
        _words(
            "Ashby Brill Corwen Dunster Elmham Frome Gorran Haltwick Ilmer Jarrow Kelso Ludlow Malton Nairn "
            "Oakham Penrith Romsey Selby Tenby Wells"
        ),
    ),
    "trade": Relation(
        ("The trade of {} is", "{} works as a", "By trade {} is a"),
        _words(
            "baker barber brewer butcher carpenter cook dyer farmer fisher gardener glazier mason miller nurse "
            "painter potter sailor smith tailor weaver"
        ),
    ),
    "colour": Relation(
        ("The colour of {} is", "{} likes to wear", "The door of {} is"),
        _words("amber black blue brown crimson gold gray green indigo ivory olive pink purple red white yellow"),
    ),
    "animal": Relation(
        ("The animal of {} is", "{} keeps a", "In the house of {} there is a"),
        _words(
            "badger camel cat crow dog donkey duck ferret fox goat goose hare hen horse mouse owl pig rabbit "
            "sheep turtle"
        ),
    ),
    "fruit": Relation(
        ("The fruit of {} is", "{} likes to eat", "In the garden of {} grows"),
        _words(
            "apple apricot banana cherry currant fig grape lemon lime mango melon nectarine orange papaya peach "
            "pear plum quince raspberry strawberry"
        ),
    ),
}

# The filler's words: a subject does what it usually does, somewhere.
_ADJECTIVES = _words("old young tall quiet wet dry narrow wide bright dark cold warm slow quick plain strange")
_THINGS = {
    "river": "ran", "wind": "blew", "road": "led", "cart": "rolled", "boat": "drifted", "cloud": "passed",
    "bell": "rang", "crowd": "walked", "shadow": "fell", "rain": "poured", "train": "rattled", "voice": "carried",
    "stream": "wound", "bird": "flew", "child": "climbed", "lamp": "shone",
}  # fmt: skip
_PLACES = _words("bridge hill wall forest field market harbour tower valley church meadow square")
_WHERE = _words("past over under along behind across")

_SYLLABLES = ("ba be da do fa ga ka la le lo ma me mi na ne ro sa se ta to ti va vi ze", "l n r s m x th nd rk lf")
_TEXT_WORDS = (
    "Memorize the following dictionary The value of key is Question Answer A B C D lives in You will find works as a "
    "By trade likes to wear door keeps In house there eat garden grows home colour animal fruit password What User "
    "Assistant go on Count up makes"
)
PUNCTUATION = ("\n", ":", ".", ",", "?", "'")
BEGIN, END, UNKNOWN = "<|begin|>", "<|end|>", "<|unknown|>"


class World:
    """The people, the facts and the words of one seed.

    Attributes:
        people: names that no other word is like.
        facts: every person × relation.
        nouns: the words that dictionaries and needles draw from: every noun of ``wonderwords`` that the world has.

    >>> World(0).facts[0]
    WorldFact(person='Mithbe', relation='home', answer='Malton', held_out=False)
    """

    def __init__(self, seed: int = 0) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.people = _names(rng)
        self.facts = tuple(
            WorldFact(person, name, rng.choice(relation.answers), rng.random() < 1 / 3)
            for person in self.people
            for name, relation in RELATIONS.items()
        )
        drawn = rng.sample(sorted(set(nouns()) - set(self._fixed_words())), MORE_NOUNS)
        self.nouns = tuple(sorted({*drawn, *set(nouns()).intersection(self._fixed_words())}))

    def options(self, fact: WorldFact, rng: random.Random, count: int = 4) -> tuple[tuple[str, ...], int]:
        """``count`` different answers to the fact's question in random order, and the place of the right one."""
        others = [answer for answer in RELATIONS[fact.relation].answers if answer != fact.answer]
        chosen = rng.sample([fact.answer, *rng.sample(others, count - 1)], count)
        return tuple(chosen), chosen.index(fact.answer)

    def state(self, fact: WorldFact, rng: random.Random) -> str:
        """The fact in one of its phrasings, up to where its answer comes."""
        return rng.choice(RELATIONS[fact.relation].phrasings).format(fact.person)

    def sentence(self, rng: random.Random) -> str:
        """A sentence of filler, ten words: what does what is always the same, the rest is drawn."""
        thing = rng.choice(tuple(_THINGS))
        first, second = rng.sample(_ADJECTIVES, 2)
        return f"The {first} {thing} {_THINGS[thing]} {rng.choice(_WHERE)} the {second} {rng.choice(_PLACES)}."

    def filler(self, sentences: int, rng: random.Random) -> list[str]:
        return [self.sentence(rng) for _ in range(sentences)]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Words, numbers and marks: every token of the world's tokenizer but the special ones."""
        numbers = [str(number) for number in range(100)]
        return tuple(dict.fromkeys([*PUNCTUATION, *numbers, *self._fixed_words(), *self.people, *self.nouns]))

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """One token a word, a number or a mark; spaces are not kept, line breaks are. A prompt opens with a token."""
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        ids = {word: i for i, word in enumerate([END, BEGIN, UNKNOWN, *self.words])}
        backend = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
        pattern = Regex(r"\n|\w+|[^\w\s]")
        backend.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="removed", invert=True)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", special_tokens=[(BEGIN, ids[BEGIN])]
        )
        names = {"bos_token": BEGIN, "eos_token": END, "pad_token": END, "unk_token": UNKNOWN}
        return PreTrainedTokenizerFast(tokenizer_object=backend, **names)

    @staticmethod
    def _fixed_words() -> list[str]:
        """The words that every world has."""
        answers = [answer for relation in RELATIONS.values() for answer in relation.answers]
        filler = [*_ADJECTIVES, *_THINGS, *_THINGS.values(), *_PLACES, *_WHERE]
        return list(dict.fromkeys([*_TEXT_WORDS.split(), *answers, *filler]))


def _names(rng: random.Random) -> tuple[str, ...]:
    """Invented names: syllable, consonants, syllable."""
    syllables, middles = (part.split() for part in _SYLLABLES)
    found: dict[str, None] = {}
    while len(found) < PEOPLE:
        found[(rng.choice(syllables) + rng.choice(middles) + rng.choice(syllables)).capitalize()] = None
    return tuple(found)


@cache
def world(seed: int = 0) -> World:
    """The world of that seed, made once."""
    return World(seed)
