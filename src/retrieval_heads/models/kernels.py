"""The fastest scans there are for a recurrent model: fused kernels on a GPU, this package's own on a CPU."""

from __future__ import annotations

import importlib
import logging
from functools import cache
from typing import TYPE_CHECKING

from . import scans
from .cache import say
from .families import FAMILIES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FUSED = {"mamba_ssm": "mamba-ssm", "causal_conv1d": "causal-conv1d"}  # as imported, as installed


def prepare(module: PreTrainedModel) -> None:
    """Let a model's recurrent layers run as fast as they can on its device; a model without any is left alone.

    On CUDA transformers takes the kernels of mamba-ssm and causal-conv1d by itself where they can be imported; what
    is missing is said once. Elsewhere nothing asks for them, and :mod:`.scans` stand in for transformers' loops.
    """
    family = FAMILIES.get(module.config.model_type)
    kinds = {row.kind for row in family.rows} if family else set()
    # transformers recommends the kernels on every machine, a CPU too. The same filter twice is one.
    logging.getLogger("transformers.integrations.hub_kernels").addFilter(_not_about_kernels)
    if any(parameter.device.type == "cuda" for parameter in module.parameters()):
        if kinds & {"mamba", "mamba2"}:  # neither package has a kernel for the RG-LRU
            _say_what_is_missing()
    elif kinds - {"attention"}:
        scans.install()


def _not_about_kernels(record: logging.LogRecord) -> bool:
    return "falling back to its reference PyTorch implementation" not in record.getMessage()


@cache  # said once
def _say_what_is_missing() -> None:
    missing = [package for name, package in FUSED.items() if not _importable(name)]
    if missing:
        say(
            f"{' and '.join(missing)} cannot be imported: Mamba layers run on the GPU in plain PyTorch, with the same "
            "results and much slower (Mamba-1 token by token); pip install 'retrieval-heads[gpu]'"
        )


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception:  # built for another torch or CUDA, they fail in many ways
        return False
    return True
