"""Heads, sets of heads, and tables of what removing each of them does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

KINDS = ("attention", "mamba", "mamba2", "rglru")


@dataclass(frozen=True, order=True)
class Head:
    """One mixing head: a slice of one layer's output projection's input (paper A, section 2).

    Written ``L16H22``: layer 16, head 22, both counted from zero. A layer of a hybrid may hold
    heads of two kinds; there the kind is written too, ``L6H3:mamba2``.

    >>> Head.parse("L16H22")
    Head(layer=16, index=22, kind='attention')
    >>> str(Head(35, 3186, "mamba"))
    'L35H3186:mamba'
    """

    layer: int
    index: int
    kind: str = "attention"

    def __post_init__(self) -> None:
        if self.layer < 0 or self.index < 0:
            raise ValueError(f"a head's layer and index count from 0, got layer={self.layer}, index={self.index}")
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is not one of {', '.join(KINDS)}")

    @classmethod
    def parse(cls, text: str, kind: str = "attention") -> Head:
        """Read ``L16H22`` or ``L16H22:mamba2``; ``kind`` is used where the text names none.

        Raises:
            ValueError: the text is not a head.
        """
        match = re.fullmatch(r"L(\d+)H(\d+)(?::(\w+))?", text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a head; write layer and index like L16H22 (or L16H22:mamba2)")
        return cls(int(match[1]), int(match[2]), match[3] or kind)

    @property
    def label(self) -> str:
        """``L16H22``, without the kind: for figures and tables that have the kind elsewhere."""
        return f"L{self.layer}H{self.index}"

    def __str__(self) -> str:
        return self.label if self.kind == "attention" else f"{self.label}:{self.kind}"


class HeadSet(Set):
    """An immutable, ordered set of heads, with set algebra: ``|``, ``&``, ``-``, ``in``, ``<=``.

    >>> str(HeadSet(["L18H6", "L16H0"]) | HeadSet(["L17H8"]))
    'L16H0, L17H8, L18H6'
    """

    def __init__(self, heads: Iterable[Head | str] = ()) -> None:
        if isinstance(heads, (str, Head)):
            raise TypeError(f"HeadSet takes a list of heads, not one: HeadSet([{str(heads)!r}])")
        self._heads = tuple(sorted({h if isinstance(h, Head) else Head.parse(h) for h in heads}))

    def __contains__(self, head: object) -> bool:
        return (Head.parse(head) if isinstance(head, str) else head) in self._heads

    def __iter__(self) -> Iterator[Head]:
        return iter(self._heads)

    def __len__(self) -> int:
        return len(self._heads)

    def __hash__(self) -> int:
        return hash(self._heads)

    def __repr__(self) -> str:
        return f"HeadSet([{', '.join(repr(str(h)) for h in self)}])"

    def __str__(self) -> str:
        return ", ".join(map(str, self)) or "no heads"
