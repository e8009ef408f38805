"""A model at its true size before it is loaded: its heads, and the memory of weights, KV cache and recurrent state.

Nothing is downloaded and no weight is made. Bytes are those of the tensors that are kept; a running model needs
activations on top, which depend on the code that runs it.
"""

from __future__ import annotations

import copy
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from . import llamba  # noqa: F401 - its import makes the architecture known to transformers
from .cache import LoadError, say
from .catalog import CATALOG, Entry, Hub, Shipped, find
from .configs import CONFIGS
from .families import mixers
from .sources import one_line, quiet

STATE_DTYPE = torch.float32  # a state sums over all tokens; transformers keeps it in 32 bits in every family
# Fields of a config without a part in any tensor's shape or in what the model computes in eval mode.
NOT_COMPARED = (
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "dtype",
    "initializer_range",
    "transformers_version",
    "use_cache",
)


def config_of(name: str | os.PathLike[str]) -> PreTrainedConfig:
    """The config of a model of the catalog, or of a folder with a config.json.

    >>> config_of("llama-3.1-8b").num_key_value_heads
    8

    Raises:
        ValueError: no such name.
        LoadError: the folder has no config.json, or transformers cannot read it.
    """
    name = os.fspath(name)
    if name in CONFIGS:
        return AutoConfig.for_model(**copy.deepcopy(CONFIGS[name]))  # a config class writes into what it is given
    entry, folder = CATALOG.get(name), Path(name).expanduser()
    if entry is not None and isinstance(entry.source, Shipped):
        folder = entry.source.folder
    elif not (name and folder.is_dir()):
        if "/" in name:
            raise ValueError(f"{name!r} is no folder, and no model is fetched here; give one with its config.json")
        find(name)  # raises, naming what there is
    return _read(folder)


def _read(folder: Path) -> PreTrainedConfig:
    if not (folder / "config.json").is_file():
        raise LoadError(f"{folder} has no config.json; a model's folder has one beside its weights")
    try:
        with quiet():
            return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers raises a dozen types here
        raise LoadError(f"transformers cannot read {folder / 'config.json'}: {one_line(error)}") from error


def meta_model(name: str | os.PathLike[str]) -> PreTrainedModel:
    """:func:`config_of`'s model on the meta device, in eval mode: every module and shape, and no memory.

    Raises:
        ValueError, LoadError: as :func:`config_of`; LoadError too where it is no causal language model.
    """
    config = config_of(name)
    try:
        with quiet(), torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False).eval()
    except ValueError as error:
        raise LoadError(f"transformers cannot build {os.fspath(name)!r}: {one_line(error)}") from error


def check_config(name: str, folder: str | os.PathLike[str] | None = None) -> list[str]:
    """How the catalog's config of ``name`` differs from the published config.json, a line a field.

    The published one is in ``folder``, or else fetched from the hub. What transformers makes of both is compared,
    so defaults and older spellings of a field are the same. Fields that say how text ends or how the file was
    written are left out.

    Raises:
        ValueError: the catalog has no config of that name.
        LoadError: the published config.json cannot be had or read.
    """
    if name not in CONFIGS:
        raise ValueError(f"there is no config of {name!r} to check; there are {', '.join(CONFIGS)}")
    here, published = config_of(name).to_dict(), _read(Path(folder or _fetch_config(CATALOG[name]))).to_dict()
    return [
        f"{field}: {_shown(published.get(field))} is published, {_shown(here[field])} is here"
        for field in sorted(here)
        if not field.endswith("_token_id")
        and field not in NOT_COMPARED
        and not _same(here[field], published.get(field))
    ]


def _fetch_config(entry: Entry) -> Path:
    """The folder where the hub's cache keeps the config.json of a model."""
    if not isinstance(entry.source, Hub):
        raise ValueError(f"{entry.name!r} is not fetched from the hub; give the folder that holds its config.json")
    say(f"Fetching config.json of {entry.source.id} from the Hugging Face hub (a few kB)")
    try:
        return Path(huggingface_hub.hf_hub_download(entry.source.id, "config.json")).parent
    except Exception as error:  # the hub raises a dozen types
        raise LoadError(
            f"could not fetch config.json of {entry.source.id!r} from the hub ({type(error).__name__}: "
            f"{one_line(error)}); give a folder that holds it"
        ) from error


def _same(a: Any, b: Any) -> bool:
    # Converted weights keep floats in 32 bits.
    return math.isclose(a, b, rel_tol=1e-6) if isinstance(a, float) and isinstance(b, float) else a == b


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else f"{text[:200]}…"


@dataclass(frozen=True)
class HeadGroup:
    """Layers with equally many heads of one kind and width."""

    kind: str
    heads: int  # of each layer
    width: int
    layers: tuple[int, ...]

    @property
    def total(self) -> int:
        return self.heads * len(self.layers)


def head_groups(model: PreTrainedModel | PreTrainedConfig) -> list[HeadGroup]:
    """The model's mixing heads, equal layers together, in the order in which a forward pass first meets each group.

    >>> head_groups(config_of("jamba-mini-1.6"))[1]
    HeadGroup(kind='attention', heads=32, width=128, layers=(4, 12, 20, 28))

    Raises:
        ValueError: the architecture is not in the table of families, or the table does not fit the model.
    """
    layers: dict[tuple[str, int, int], list[int]] = {}
    for mixer in mixers(model):
        layers.setdefault((mixer.kind, mixer.heads, mixer.width), []).append(mixer.layer)
    return [HeadGroup(*key, tuple(found)) for key, found in layers.items()]


def runs(layers: tuple[int, ...]) -> str:
    """Ascending layers as text, neighbours joined.

    >>> runs((0, 1, 2, 4, 6, 7))
    '0–2, 4, 6–7'
    """
    found: list[list[int]] = []
    for layer in layers:
        if found and layer == found[-1][-1] + 1:
            found[-1] = [found[-1][0], layer]
        else:
            found.append([layer])
    return ", ".join("–".join(map(str, run)) for run in found)


def weight_bytes(model: PreTrainedModel, dtype: torch.dtype) -> int:
    """Bytes of the model's parameters in ``dtype``; one that several places share counts once."""
    return sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize


def cache_bytes(config: PreTrainedConfig, length: int, batch: int, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of ``batch`` texts of ``length`` tokens, in every attention layer.

    Raises:
        ValueError: the architecture is not in the table of families.
    """
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 0)
    attention = [mixer for mixer in mixers(config) if mixer.kind == "attention"]
    numbers = sum(2 * heads * mixer.width * min(length, _window(config, mixer.layer, length)) for mixer in attention)
    return batch * numbers * dtype.itemsize


def _window(config: PreTrainedConfig, layer: int, length: int) -> int:
    """How many tokens an attention layer keeps: of a sliding window of w tokens w - 1, as the next token is in it."""
    types, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    slides = window is not None and (types is None or types[layer] == "sliding_attention")
    return window - 1 if slides else length


def state_bytes(config: PreTrainedConfig, batch: int, dtype: torch.dtype) -> int:
    """Bytes that the recurrent layers keep for ``batch`` texts, however long: the convolution's inputs and the state.

    The convolution's part is in ``dtype``, the state in float32.

    Raises:
        ValueError: the architecture is not in the table of families, or its config names no state size.
    """
    size = 0
    for mixer in mixers(config):
        if mixer.kind != "attention":
            channels = convolved = mixer.heads * mixer.width
            if mixer.kind == "rglru":  # one number a channel; of the convolution's inputs only the past ones
                state, taps = 1, config.conv1d_width - 1
            else:
                state = _field(config, "state_size", "mamba_d_state")
                taps = _field(config, "conv_kernel", "mamba_d_conv")
            if mixer.kind == "mamba2":  # it convolves B and C with x
                convolved += 2 * _field(config, "n_groups", "mamba_ngroups", "mamba_n_groups") * state
            size += convolved * taps * dtype.itemsize + channels * state * STATE_DTYPE.itemsize
    return batch * size


def _field(config: PreTrainedConfig, *names: str) -> int:
    """The value of the field that the config has of these: architectures call one thing by several names."""
    for name in names:
        if hasattr(config, name):
            return getattr(config, name)
    raise ValueError(f"the config of {config.model_type!r} has none of the fields {', '.join(names)}")
