from __future__ import annotations

import copy
import json
import shutil

import huggingface_hub
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, Mamba2Config, T5Config

from retrieval_heads.heads import Head
from retrieval_heads.models.catalog import CATALOG
from retrieval_heads.models.configs import CONFIGS
from retrieval_heads.models.families import FAMILIES, heads_of, mixers
from retrieval_heads.models.loading import LoadError
from retrieval_heads.models.sizes import (
    cache_bytes,
    check_config,
    config_of,
    head_groups,
    meta_model,
    state_bytes,
    weight_bytes,
)

from ..families import OPTIONS, SIZES

# Heads of each kind, from the papers and the models' own reports.
TOTALS = {
    "smollm2-135m": {"attention": 270},
    "llama-3.2-1b": {"attention": 512},
    "qwen2-1.5b": {"attention": 336},
    "zamba2-1.2b": {"mamba2": 38 * 64, "attention": 6 * 32},
    "recurrentgemma-2b": {"rglru": 18 * 2560, "attention": 80},
    "llama-3.1-8b": {"attention": 1024},
    "falcon-mamba-7b": {"mamba": 64 * 8192},
    "llamba-8b": {"mamba2": 1024},
    "llamba-8b-unaligned": {"mamba2": 1024},
    "zamba2-7b": {"mamba2": 81 * 112, "attention": 13 * 32},
    "recurrentgemma-9b": {"rglru": 26 * 4096, "attention": 192},
    "jamba-mini-1.6": {"mamba": 28 * 8192, "attention": 128},
}


# the models at their true size


def test_the_configs_stay_as_they_are_written():
    before = copy.deepcopy(CONFIGS)
    for name in CONFIGS:
        config_of(name)
    assert before == CONFIGS


def test_every_config_is_of_a_model_of_the_catalog():
    assert set(CONFIGS) == set(TOTALS) and set(CONFIGS) <= set(CATALOG)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_of_true_size_has_its_heads_and_parameters_and_no_memory(name):
    model = meta_model(name)
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"meta"}
    found: dict[str, int] = {}
    for group in head_groups(model):  # compares the table with the modules
        found[group.kind] = found.get(group.kind, 0) + group.total
    assert found == TOTALS[name]
    assert head_groups(model.config) == head_groups(model)
    assert weight_bytes(model, torch.bfloat16) == 2 * CATALOG[name].parameters


def test_heads_are_where_the_papers_have_them():
    assert {"L16H22", "L17H24", "L17H27"} <= set(map(str, heads_of(meta_model("llama-3.1-8b"))))
    attention = [group for group in head_groups(meta_model("zamba2-7b")) if group.kind == "attention"]
    assert [(g.heads, g.width) for g in attention] == [(32, 224)]
    assert attention[0].layers == (6, 11, 17, 23, 29, 35, 41, 47, 53, 59, 65, 71, 77)
    falcon = mixers(meta_model("falcon-mamba-7b"))[36]  # Aggregate channel 4925 is in its range
    assert (falcon.layer, falcon.kind, falcon.columns(Head(36, 4925, "mamba"))) == (36, "mamba", slice(4925, 4926))


def test_memory_of_two_models_worked_out_by_hand():
    llama, falcon = config_of("llama-3.1-8b"), config_of("falcon-mamba-7b")
    assert cache_bytes(llama, 4096, 1, torch.bfloat16) == 536_870_912  # 2 × 32 × 8 × 128 × 4096 × 2
    assert state_bytes(llama, 1, torch.bfloat16) == 0 == cache_bytes(falcon, 4096, 1, torch.bfloat16)
    assert state_bytes(falcon, 3, torch.bfloat16) == 3 * 37_748_736  # 64 × 8192 × (4 taps × 2 + 16 × 4)


# against what a model really keeps

WINDOWS = {
    "mistral": {"sliding_window": 6},
    "recurrent_gemma": {"attention_window_size": 6},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},  # only layers from 1 on
}
CASES = [(kind, {}) for kind in OPTIONS] + list(WINDOWS.items())


def tiny(kind, more):
    config = AutoConfig.for_model(kind, vocab_size=64, **{**SIZES, **OPTIONS[kind], **more})
    return config, AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def bytes_of(tensors):
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors if isinstance(tensor, torch.Tensor))


def kept(model, length, batch):
    """Bytes of keys and values, and of convolution and recurrent states, after a pass over a text."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.arange(length).expand(batch, -1), cache=cache, use_cache=True)
    keys = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
    states = [
        state
        for layer in cache.layers
        for name in ("conv_states", "recurrent_states")
        for state in getattr(layer, name, {}).values()
    ]
    # RecurrentGemma keeps its states in its modules
    own = [getattr(m, name, None) for m in model.modules() for name in ("conv1d_state", "recurrent_states")]
    return bytes_of(keys), bytes_of(states + own)


@pytest.mark.parametrize(("kind", "more"), CASES)
def test_cache_and_state_are_as_large_as_a_real_models(kind, more):
    config, model = tiny(kind, more)
    sizes = []
    for length in (4, 15):  # within and beyond the windows
        found = kept(model, length, batch=2)
        assert found == (cache_bytes(config, length, 2, torch.bfloat16), state_bytes(config, 2, torch.bfloat16))
        sizes.append(found)
    (short, state), (long, later) = sizes
    assert state == later and (short, state) != (0, 0)
    if more:
        assert short < long < short * 15 / 4


@pytest.mark.parametrize("kind", OPTIONS)
def test_weights_are_as_large_as_a_real_models(tmp_path, kind):
    config, model = tiny(kind, {})
    own = {parameter.data_ptr(): parameter.numel() for parameter in model.parameters()}  # tied ones once
    config.save_pretrained(tmp_path)
    assert weight_bytes(meta_model(tmp_path), torch.bfloat16) == 2 * sum(own.values())
    assert weight_bytes(meta_model(tmp_path), torch.float32) == 4 * sum(own.values())


# bad input


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match="no model is called 'llama-3.1-9b'; did you mean 'llama-3.1-8b'"):
        meta_model("llama-3.1-9b")
    with pytest.raises(ValueError, match="no model is called ''"):
        config_of("")
    with pytest.raises(ValueError, match="'owner/model' is no folder, and no model is fetched here"):
        config_of("owner/model")


def test_a_folder_needs_a_config_that_transformers_knows(tmp_path):
    with pytest.raises(LoadError, match="has no config.json"):
        config_of(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no_such_architecture"}')
    with pytest.raises(LoadError, match="transformers cannot read .*config.json"):
        config_of(tmp_path)
    T5Config().save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="transformers cannot build"):
        meta_model(tmp_path)


def test_the_error_of_an_unlisted_architecture_has_a_row_that_works(tmp_path, monkeypatch):
    AutoConfig.for_model("olmo2", vocab_size=64, **SIZES).save_pretrained(tmp_path)
    model = meta_model(tmp_path)
    with pytest.raises(ValueError, match="architecture 'olmo2' is not in the table of families") as error:
        heads_of(model)
    with pytest.raises(ValueError, match="olmo2"):
        cache_bytes(model.config, 8, 1, torch.float32)
    message = str(error.value)
    assert all(kind in message for kind in FAMILIES)
    before = dict(FAMILIES)
    exec(message[message.index("from retrieval_heads") :], {})
    try:
        assert len(heads_of(model)) == 3 * 4
        assert cache_bytes(model.config, 8, 1, torch.float32) == 3 * 2 * 2 * 12 * 8 * 4
    finally:
        FAMILIES.clear()
        FAMILIES.update(before)


def test_a_state_whose_size_the_config_does_not_name_is_an_error():
    class Nameless(Mamba2Config):
        @property
        def state_size(self):
            raise AttributeError

        @state_size.setter
        def state_size(self, value):
            pass

    with pytest.raises(ValueError, match="'mamba2' has none of the fields state_size, mamba_d_state"):
        state_bytes(Nameless(), 1, torch.float32)


# the published config


@pytest.fixture
def published(tmp_path):
    """A folder with the config.json of Llama-3.2-1B as a file on the hub spells it; changes go in as arguments."""

    def write(**changes):
        spelled = {**CONFIGS["llama-3.2-1b"], "torch_dtype": "bfloat16", "eos_token_id": [7], "pretraining_tp": 1}
        (tmp_path / "config.json").write_text(json.dumps(spelled | changes))
        return tmp_path

    return write


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_equals_itself_in_a_file(tmp_path, name):
    config_of(name).save_pretrained(tmp_path)
    assert check_config(name, tmp_path) == []


def test_what_the_published_config_has_otherwise_is_listed(published):
    assert check_config("llama-3.2-1b", published()) == []
    assert check_config("llama-3.2-1b", published(rms_norm_eps=1e-5 * (1 + 1e-8))) == []  # written in 32 bits
    assert check_config("llama-3.2-1b", published(num_key_value_heads=4, mlp_bias=True)) == [
        "mlp_bias: true is published, false is here",
        "num_key_value_heads: 4 is published, 8 is here",
    ]
    different = check_config("llama-3.2-1b", published(rope_theta=10000.0))
    assert len(different) == 1 and different[0].startswith("rope_parameters: ")


def test_the_published_config_is_fetched_from_the_hub(published, tmp_path, monkeypatch, capfd):
    folder = shutil.copytree(published(hidden_act="relu"), tmp_path / "hub")
    asked = []

    def download(repo, file):
        asked.append((repo, file))
        return str(folder / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert check_config("llama-3.2-1b") == ['hidden_act: "relu" is published, "silu" is here']
    assert asked == [("meta-llama/Llama-3.2-1B-Instruct", "config.json")]
    assert "Fetching config.json of meta-llama/Llama-3.2-1B-Instruct" in capfd.readouterr().err


def test_a_config_that_cannot_be_had_is_an_error(monkeypatch):
    def download(repo, file):
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(LoadError, match="could not fetch config.json of 'Qwen/.*no network.*give a folder"):
        check_config("qwen2-1.5b")
    with pytest.raises(ValueError, match="there is no config of 'gpt' to check; there are smollm2-135m"):
        check_config("gpt")
    with pytest.raises(ValueError, match="'smollm2-135m' is not fetched from the hub"):
        check_config("smollm2-135m")
