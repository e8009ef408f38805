"""A written answer graded 0 to 5 (paper B, Fig. 2, grades its answers so; the rubric here is ours).

===== ==================================================================================
grade an answer that
===== ==================================================================================
5     begins with the value
4     says the value, after other words
3     says part of it: some of the value's words, or a word that begins like one of them
2     says none of it, and another of the item's candidates instead
1     is about something else
0     is empty
===== ==================================================================================

Only the first line counts, without regard to case and punctuation. As in the paper the grades are steps of a
ladder and not a measure: twice the grade is not twice as right.
"""

from __future__ import annotations

import re

from .items import Item

HIGHEST = 5
ALIKE = 4  # letters with which a word has to begin like another to count as part of it


def grade(written: str, item: Item) -> int:
    """The grade of what was written after the item's prompt.

    >>> item = Item("", "The password of the fox is", (" blue door", " cat"), answer=0)
    >>> [grade(text, item) for text in (" blue door.", " the blue door", " blues", " cat", " sea", "")]
    [5, 4, 3, 2, 1, 0]
    """
    said = _words(written.strip().split("\n")[0])
    value = _words(item.candidates[item.answer])
    if not said:
        return 0
    places = [i for i in range(len(said)) if said[i : i + len(value)] == value]
    if places:
        return 5 if places[0] == 0 else 4
    if any(_alike(word, part) for word in said for part in value):
        return 3
    others = [_words(candidate) for candidate in item.candidates]
    return 2 if any(set(other) <= set(said) for other in others) else 1


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _alike(word: str, part: str) -> bool:
    return word == part or (len(word) >= ALIKE and word[:ALIKE] == part[:ALIKE])
