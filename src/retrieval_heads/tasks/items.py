"""What every task is made of: items, and the tokens a model sees of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


MARKS = ("needle", "haystack")  # what a span of a prompt can be marked as


@dataclass(frozen=True)
class Item:
    """One question with a closed set of answers.

    The prompt is ``context + question``. Items that ask about the same context share it word
    for word, so that a model need read it only once. Candidates are continuations of the
    prompt, written exactly as they would follow it (with their leading space, if any).

    ``marks`` says what some of the prompt is, for interventions that treat it apart: (name, start, end),
    a name of ``MARKS`` and the characters of a span; of spans that overlap, the later one counts.

    >>> Item("cat:7\\ndog:3\\n", "dog:", ("7", "3"), answer=1).prompt
    'cat:7\\ndog:3\\ndog:'
    """

    context: str
    question: str
    candidates: tuple[str, ...]
    answer: int
    group: str = ""  # what kind of question this is, for tasks of several kinds
    marks: tuple[tuple[str, int, int], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if len(self.candidates) < 2:
            raise ValueError(f"an item needs at least 2 candidates, got {len(self.candidates)}: {self.candidates}")
        if len(set(self.candidates)) < len(self.candidates):
            raise ValueError(f"an item's candidates must differ, got {self.candidates}")
        if not 0 <= self.answer < len(self.candidates):
            raise ValueError(f"answer={self.answer} is not an index into {len(self.candidates)} candidates")
        for name, start, end in self.marks:
            if name not in MARKS or not 0 <= start < end <= len(self.prompt):
                raise ValueError(f"({name!r}, {start}, {end}) is no span of the prompt named one of {MARKS}")

    @property
    def prompt(self) -> str:
        return self.context + self.question


class Task(BaseModel):
    """A task is plain data (its fields, a seed among them) and one generator, :meth:`items`.

    Two tasks with equal fields make equal items, on every machine. Unknown fields and values
    out of range are refused by name when the task is made.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    seed: int = 0

    def items(self, tokenizer: PreTrainedTokenizerBase | None = None) -> list[Item]:
        """The task's items. ``tokenizer`` is needed only where a field of the task speaks of tokens."""
        raise NotImplementedError

    def describe(self) -> dict:
        """The task as JSON data: what a results file records."""
        return {"task": self.name, **self.model_dump(mode="json")}

    def to_dataset(self, tokenizer: PreTrainedTokenizerBase | None = None) -> Dataset:
        """The items as a :class:`datasets.Dataset`, one row an item."""
        from datasets import Dataset

        return Dataset.from_list([asdict(item) | {"prompt": item.prompt} for item in self.items(tokenizer)])
