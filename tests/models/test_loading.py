from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from nnsight import TransformersModel
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from retrieval_heads.models import loading
from retrieval_heads.models.catalog import CATALOG
from retrieval_heads.models.loading import LoadError, describe, fingerprint, load, model_name


@pytest.fixture
def folder(tiny_llama_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    return shutil.copytree(tiny_llama_folder, tmp_path / "tiny")


# a folder


def test_a_folder_is_loaded_ready_for_interventions(tiny_llama_folder):
    model = load(tiny_llama_folder, device="cpu")
    assert isinstance(model, TransformersModel)
    assert model.dispatched and model.task == "text-generation"
    module = model._module
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert module.dtype == torch.float32 and module.device.type == "cpu"
    assert model.tokenizer.decode(model.tokenizer.encode("cat:12\n")) == "cat:12\n"
    with torch.no_grad(), model.trace("cat:12\ndog:7\ncat:"):
        hidden = model.model.layers[1].output.save()
        logits = model.lm_head.output.save()
    assert hidden.shape == (1, 17, 64) and logits.shape == (1, 17, 257)
    assert torch.equal(logits, module(model.tokenizer("cat:12\ndog:7\ncat:", return_tensors="pt").input_ids).logits)


def test_activations_have_gradients_though_parameters_have_none(tiny_llama_folder):
    model = load(tiny_llama_folder, device="cpu")
    with model.trace("cat:"):
        hidden = model.model.layers[0].output
        hidden.requires_grad_(True)
        with model.lm_head.output[0, -1, 5].backward():
            gradient = hidden.grad.save()
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_dtype_and_attention_are_as_asked(tiny_llama_folder, dtype):
    model = load(str(tiny_llama_folder), dtype=dtype, device="cpu", attn_implementation="eager")
    assert model._module.dtype == torch.bfloat16
    assert model._module.config._attn_implementation == "eager"


def test_loading_is_quiet_and_restores_what_it_quietens(tiny_llama_folder, capfd):
    transformers_logging.set_verbosity_info()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load(tiny_llama_folder, device="cpu")
        assert capfd.readouterr() == ("", "")
        assert transformers_logging.get_verbosity() == transformers_logging.INFO
        assert transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.set_verbosity_warning()


# names and records


def test_a_model_knows_its_name(tiny_llama_folder):
    assert model_name(load(tiny_llama_folder, device="cpu")) == str(tiny_llama_folder)


def test_a_model_wrapped_by_hand_is_described_too(tiny_llama_folder):
    loaded = load(tiny_llama_folder, device="cpu")
    by_hand = TransformersModel(
        AutoModelForCausalLM.from_pretrained(tiny_llama_folder), task="text-generation", tokenizer=loaded.tokenizer
    )
    assert model_name(by_hand) == str(tiny_llama_folder)
    assert describe(by_hand)["source"] == "not loaded by retrieval_heads"
    assert fingerprint(by_hand) == fingerprint(loaded)


def test_the_description_is_plain_and_complete(tiny_llama_folder):
    model = load(tiny_llama_folder, device="cpu")
    record = describe(model)
    assert json.loads(json.dumps(record)) == record
    assert record["parameters"] == sum(p.numel() for p in model._module.parameters())
    assert record["dtype"] == "float32" and record["fingerprint"] == fingerprint(model)
    assert {"name", "source", "revision", "torch", "transformers", "nnsight", "retrieval_heads"} <= set(record)


def test_the_fingerprint_changes_with_one_weight_and_with_the_dtype(tiny_llama_folder):
    model = load(tiny_llama_folder, device="cpu")
    before = fingerprint(model)
    assert before == fingerprint(load(tiny_llama_folder, device="cpu"))
    assert before != fingerprint(load(tiny_llama_folder, device="cpu", dtype="bfloat16"))
    with torch.no_grad():
        model._module.model.layers[2].mlp.up_proj.weight[5, 7] += 1e-3
    assert fingerprint(model) != before


# a folder that is no model


def test_a_folder_without_config(folder):
    (folder / "config.json").unlink()
    with pytest.raises(LoadError, match="tiny has no config.json"):
        load(folder)


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(LoadError, match="model.safetensors is missing; weights are read from safetensors only"):
        load(folder)


def test_a_folder_without_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(LoadError, match="tiny has no tokenizer"):
        load(folder)


@pytest.mark.parametrize("keep", [4, 300, -1])
def test_a_truncated_file(folder, keep):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(LoadError, match="tiny/model.safetensors is damaged .*intact copy"):
        load(folder)


def test_a_shard_that_is_missing(folder, tiny_llama_folder):
    module = AutoModelForCausalLM.from_pretrained(tiny_llama_folder)
    (folder / "model.safetensors").unlink()
    module.save_pretrained(folder, max_shard_size="100KB")
    assert load(folder, device="cpu") is not None
    sorted(folder.glob("model-*.safetensors"))[1].unlink()
    with pytest.raises(LoadError, match="model-00002-of-.*safetensors is missing"):
        load(folder)


@pytest.mark.parametrize("change", [{"num_hidden_layers": 4}, {"intermediate_size": 128}])
def test_weights_of_another_model_are_not_filled_with_random_numbers(folder, change):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(LoadError, match=r"do not fit its config.json: \d+ tensors are missing .* model.layers.\d"):
        load(folder)


def test_an_unknown_architecture(folder):
    (folder / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(LoadError, match="transformers cannot load .*tiny: .*no-such-model"):
        load(folder)


def test_code_of_a_model_is_never_run(folder):
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('this must not run')")
    with pytest.raises(LoadError, match="needs Python code of its own, which is never run"):
        load(folder)


# arguments


def test_a_file_instead_of_a_folder(folder):
    with pytest.raises(LoadError, match="is a file; give the folder"):
        load(folder / "model.safetensors")


@pytest.mark.parametrize("name", ["smolm2-135m", "./no/such/folder", "zoo/no-such-model", "a/b/c", ""])
def test_an_unknown_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"no model is called '{name}'"):
        load(name)


@pytest.mark.parametrize("dtype", ["int8", "fp32", torch.int64])
def test_a_dtype_that_is_none(dtype):
    with pytest.raises(ValueError, match="dtype=.* is not one of 'float32'"):
        load("smollm2-135m", dtype=dtype)


@pytest.mark.parametrize(("device", "message"), [("gpu", "not a device of torch"), ("cuda:99", "does not see")])
def test_a_device_that_is_none(device, message):
    with pytest.raises(ValueError, match=f"device='{device}' .*{message}"):
        load("smollm2-135m", device=device)


def test_an_attention_that_is_none(tiny_llama_folder):
    with pytest.raises(LoadError, match="with attn_implementation='fast'"):
        load(tiny_llama_folder, attn_implementation="fast")


def test_the_default_dtype_follows_the_device():
    assert loading._dtype(None, torch.device("cpu")) == torch.float32
    assert loading._dtype(None, torch.device("cuda")) == torch.bfloat16


# the real one


@pytest.mark.real_model
def test_smollm2_is_itself():
    model = load("smollm2-135m", device="cpu")
    config = model._module.config
    assert (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) == (30, 9, 3)
    assert describe(model)["parameters"] == CATALOG["smollm2-135m"].parameters
    with torch.no_grad(), model.generate("The capital of France is", max_new_tokens=5, do_sample=False) as tracer:
        tokens = tracer.result.save()
    assert "Paris" in model.tokenizer.decode(tokens[0])
    # digits stand alone, and the white space before them stays whole, as in the original tokenizer
    assert model.tokenizer.tokenize("x\n\n12") == ["x", "ĊĊ", "1", "2"]
