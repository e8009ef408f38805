from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors
from transformers import AutoTokenizer

from retrieval_heads.models.cache import LoadError
from retrieval_heads.models.catalog import CATALOG, Hub, Shipped, WheelFile, find
from retrieval_heads.models.loading import load

from ..families import save_tiny


@pytest.mark.parametrize("name", CATALOG)
def test_entries_say_what_they_are(name):
    entry = find(name)
    assert entry.name == name
    assert entry.parameters > 0 and (entry.download_bytes > 0) != isinstance(entry.source, Shipped)
    assert entry.licence and entry.description
    if isinstance(entry.source, WheelFile):
        assert len(entry.source.wheel.members[entry.source.path]) == 64
        assert entry.source.wheel.distribution in str(entry.source)
    elif isinstance(entry.source, Shipped):
        assert (entry.source.folder / "model.safetensors").is_file()
    else:
        assert isinstance(entry.source, Hub)
        assert entry.source.id.count("/") == 1


def test_an_unknown_name_is_answered_with_the_closest_and_all():
    with pytest.raises(ValueError, match="no model is called 'SmolLM-135m'; did you mean 'smollm2-135m'") as error:
        find("SmolLM-135m")
    for name in CATALOG:
        assert name in str(error.value)
    assert "hub" in str(error.value) and "folder" in str(error.value)


def test_a_name_like_no_other_gets_the_list_alone():
    with pytest.raises(ValueError, match="no model is called 'xyz'; the catalog has smollm2-135m") as error:
        find("xyz")
    assert "did you mean" not in str(error.value)


def test_the_catalog_is_light():
    code = "import sys, retrieval_heads.models.catalog; assert not {'torch', 'transformers'} & set(sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_a_model_without_a_tokenizer_borrows_one(tiny_llama_folder, tmp_path, monkeypatch, capfd):
    """As Llamba was published: weights in one repository, the tokenizer in another that is gated."""
    weights = save_tiny("llamba", tmp_path / "weights", AutoTokenizer.from_pretrained(tiny_llama_folder))
    (lender := tmp_path / "lender").mkdir()
    for file in weights.glob("tokenizer*"):
        file.rename(lender / file.name)
    refused, fetched = [True], []

    def download(repo, *, local_files_only=False, **_):
        if repo == "cartesia-ai/Llamba-8B-untied":
            return str(weights)
        assert repo == "meta-llama/Llama-3.1-8B-Instruct"
        if local_files_only and not fetched:
            raise hub_errors.LocalEntryNotFoundError("not here")
        if refused:
            raise hub_errors.GatedRepoError("gated", response=SimpleNamespace(headers={}, request=None))
        fetched.append(repo)
        return str(lender)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(LoadError, match=r"Llama-3.1-8B-Instruct' is gated: accept its licence \(Llama 3.1 Community"):
        load("llamba-8b", device="cpu")
    refused.clear()
    capfd.readouterr()
    for expected in ("Fetching the tokenizer of meta-llama/Llama-3.1-8B-Instruct", ""):  # the second time it is here
        model = load("llamba-8b", device="cpu")
        assert model.tokenizer.decode(model.tokenizer.encode("cat:12\n")) == "cat:12\n"
        said = capfd.readouterr().err
        assert said.startswith(expected) and bool(said) == bool(expected)


def test_a_folder_still_needs_its_own_tokenizer(tiny_llama_folder, tmp_path):
    folder = save_tiny("llamba", tmp_path, AutoTokenizer.from_pretrained(tiny_llama_folder))
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(LoadError, match="has no tokenizer"):
        load(folder)
