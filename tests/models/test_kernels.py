"""What is said where a GPU's kernels are missing; the tests have no GPU, so the model on it is a stand-in."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from retrieval_heads.models import kernels, loading, scans
from retrieval_heads.models.families import FAMILIES

from ..families import OPTIONS, SIZES, save_tiny


def model(kind, *devices):
    parameters = [SimpleNamespace(device=torch.device(device)) for device in devices]
    return SimpleNamespace(config=SimpleNamespace(model_type=kind), parameters=lambda: iter(parameters))


@pytest.fixture
def imports(monkeypatch):
    """What was imported, and a dict of the error that importing a package raises."""
    kernels._say_what_is_missing.cache_clear()
    monkeypatch.setattr(kernels.scans, "install", lambda: None)
    asked, errors = [], {}

    def import_module(name):
        asked.append(name)
        if name in errors:
            raise errors[name]

    monkeypatch.setattr(kernels, "importlib", SimpleNamespace(import_module=import_module))
    yield asked, errors
    kernels._say_what_is_missing.cache_clear()


MAMBAS = [kind for kind, family in FAMILIES.items() if {row.kind for row in family.rows} & {"mamba", "mamba2"}]


@pytest.mark.parametrize("kind", MAMBAS)
def test_missing_kernels_are_said_once_in_one_line(imports, capfd, kind):
    imports[1].update(mamba_ssm=ModuleNotFoundError("no"), causal_conv1d=OSError("undefined symbol"))
    kernels.prepare(model(kind, "cpu", "cuda:1"))  # spread over several devices
    kernels.prepare(model("mamba", "cuda"))
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    for part in ("mamba-ssm and causal-conv1d", "slower", "pip install 'retrieval-heads[gpu]'"):
        assert part in err


def test_only_what_is_missing_is_named(imports, capfd):
    imports[1].update(causal_conv1d=ImportError("no"))
    kernels.prepare(model("zamba2", "cuda"))
    err = capfd.readouterr().err
    assert "causal-conv1d cannot be imported" in err and "mamba-ssm" not in err


def test_nothing_is_said_where_the_kernels_are_there(imports, capfd):
    kernels.prepare(model("falcon_mamba", "cuda"))
    assert imports[0] == ["mamba_ssm", "causal_conv1d"] and capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("kind", "device"), [(kind, "cpu") for kind in FAMILIES] + [("llama", "cuda"), ("recurrent_gemma", "cuda")]
)
def test_nothing_is_imported_without_a_gpu_or_without_mamba_layers(imports, capfd, kind, device):
    kernels.prepare(model(kind, device))
    kernels.prepare(model("an_architecture_of_no_family", device))
    assert imports[0] == [] and capfd.readouterr() == ("", "")


def test_loading_asks_with_the_placed_model(tmp_path, tiny_llama_folder, monkeypatch):
    seen = []
    monkeypatch.setattr(loading, "prepare", lambda module: seen.append((module.config.model_type, module.device.type)))
    loading.load(save_tiny("mamba", tmp_path, AutoTokenizer.from_pretrained(tiny_llama_folder)), device="cpu")
    assert seen == [("mamba", "cpu")]


@pytest.mark.parametrize(
    ("device", "kind", "expected"),
    [
        ("cpu", "jamba", 1),
        ("cpu", "recurrent_gemma", 1),
        ("cpu", "llama", 0),
        ("cpu", "abacus", 0),
        ("cuda", "mamba", 0),
    ],
)
def test_scans_are_installed_for_recurrent_models_on_a_cpu_alone(device, kind, expected, imports, monkeypatch):
    installed = []
    monkeypatch.setattr(kernels.scans, "install", lambda: installed.append(kind))
    kernels.prepare(model(kind, device))
    assert len(installed) == expected


@pytest.mark.parametrize("kind", ["mamba", "falcon_mamba", "mamba2", "zamba2", "recurrent_gemma", "jamba", "bamba"])
def test_the_scans_equal_the_loops_that_they_stand_in_for(kind):
    """The same model before and after, in a process of its own order: references are unwrapped by ``__wrapped__``."""
    config = AutoConfig.for_model(kind, vocab_size=64, **{**SIZES, **OPTIONS[kind]})
    torch.manual_seed(0)
    tiny, ids = AutoModelForCausalLM.from_config(config).eval(), torch.randint(0, 64, (2, 40))
    module, places = sys.modules[type(tiny).__module__], ("mamba_selective_scan", "mamba2_chunk_scan")
    holder, name = next(((module, place) for place in places if hasattr(module, place)), (None, None))
    if holder is None:
        holder, name = module.RecurrentGemmaRglru, "_rnn_scan"
    scans.install()
    fast = getattr(holder, name)
    with torch.no_grad():
        found = tiny(ids).logits
        setattr(holder, name, fast.__wrapped__)
        try:
            expected = tiny(ids).logits
        finally:
            setattr(holder, name, fast)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


def test_a_cpu_is_not_told_to_install_a_gpus_kernels():
    kernels.prepare(model("mamba", "cpu"))
    logger = logging.getLogger("transformers.integrations.hub_kernels")
    told = "`conv` is falling back to its reference PyTorch implementation because `causal_conv1d` is not installed."
    for text, kept in ((told, False), ("another word", True)):
        record = logger.makeRecord(logger.name, logging.WARNING, "", 0, text, (), None)
        assert bool(logger.filter(record)) is kept
