"""From items to token ids, with the checks that make answer scores comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ..tasks.items import MARKS, Item

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Encoded:
    """An item's token ids: the prompt's, and each candidate's after it.

    Attributes:
        marks: one number a token of the prompt: 0, or the place of its mark in ``MARKS``, from 1.
    """

    prompt: tuple[int, ...]
    candidates: tuple[tuple[int, ...], ...]
    answer: int
    marks: tuple[int, ...]


def encode(items: Sequence[Item], tokenizer: PreTrainedTokenizerBase) -> list[Encoded]:
    """Token ids of every item.

    The prompt is encoded as the tokenizer does by default (with its beginning-of-sequence token,
    if it has one). A candidate's tokens are what it adds to the encoded question; should the two
    merge into one token, the candidate is encoded alone.

    Raises:
        ValueError: a prompt of no tokens, two candidates that are the same tokens, or one that begins another.
    """
    return [_encode_one(item, tokenizer) for item in items]


def _encode_one(item: Item, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    joined = [item.question + text for text in item.candidates]
    question, *joint = tokenizer([item.question, *joined], add_special_tokens=False).input_ids
    candidates = []
    for text, tokens in zip(item.candidates, joint):
        merged = tokens[: len(question)] != question
        alone = tokenizer.encode(text, add_special_tokens=False) if merged else tokens[len(question) :]
        candidates.append(tuple(alone))
    read = tokenizer(item.prompt, return_offsets_mapping=bool(item.marks))
    prompt = read.input_ids
    if not prompt:
        raise ValueError(f"the prompt {item.prompt!r} is no tokens; a candidate is scored after at least one")
    _check_distinguishable(item, candidates)
    marks = _marks(item, read.offset_mapping) if item.marks else (0,) * len(prompt)
    return Encoded(tuple(prompt), tuple(candidates), item.answer, marks)


def _marks(item: Item, spans: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """What the tokens with these spans are marked as: as their first character is, or, after spaces, the next one."""
    of_characters = [0] * len(item.prompt)
    for name, start, end in item.marks:
        of_characters[start:end] = [1 + MARKS.index(name)] * (end - start)
    found = []
    for start, end in spans:
        start += len(item.prompt[start:end]) - len(item.prompt[start:end].lstrip(" "))
        found.append(of_characters[start] if start < end else 0)
    return tuple(found)


def _check_distinguishable(item: Item, candidates: list[tuple[int, ...]]) -> None:
    ordered = sorted(zip(candidates, item.candidates))
    for (tokens, text), (next_tokens, next_text) in pairwise(ordered):
        if not tokens or tokens == next_tokens:
            raise ValueError(
                f"the tokenizer cannot tell {text!r} from {next_text!r}: both are the tokens {list(tokens)}; "
                "choose other values for this tokenizer"
            )
        if next_tokens[: len(tokens)] == tokens:
            raise ValueError(
                f"candidate {text!r} begins candidate {next_text!r}, so it could never score lower; "
                "choose candidates of which none begins another"
            )
