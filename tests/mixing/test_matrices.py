"""Every kind of head of every family: the matrix times the values is what the head's module itself computes."""

from __future__ import annotations

import pytest
import torch
from nnsight import TransformersModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from retrieval_heads.heads import Head
from retrieval_heads.interventions.knockout import knockout
from retrieval_heads.mixing.matrices import mixings
from retrieval_heads.models.families import FAMILIES, heads_of, mixers
from retrieval_heads.models.loading import load

from ..families import save_tiny
from ..oracles import weights_without

PROMPTS = ("a", "cat:7\ndog", "cat:7\ndog:3\nowl:12\nelephant:4\ndog:")  # 1, 9 and 36 tokens: chunks have 8
MORE = {
    "mistral, a window": {"sliding_window": 5},
    "recurrent_gemma, a window": {"attention_window_size": 5},
    "zamba2, adapters": {"use_shared_attention_adapter": True, "adapter_rank": 4, "head_dim": 24},
    "mamba2, steps": {"time_step_limit": (0.9, 1.6)},
}


@pytest.fixture(scope="module")
def tokenizer(tiny_llama_folder):
    return AutoTokenizer.from_pretrained(tiny_llama_folder)


def tiny(kind, folder, tokenizer, **options):
    """A model whose every parameter is random, also those that are made as zeros or ones."""
    model = load(save_tiny(kind, folder, tokenizer, **options))
    generator = torch.Generator().manual_seed(1)
    for parameter in model._module.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator).to(parameter)
    return model


@pytest.fixture(scope="module", params=[*sorted(FAMILIES), *MORE])
def model(request, tmp_path_factory, tokenizer):
    kind = request.param.partition(",")[0]
    return tiny(kind, tmp_path_factory.mktemp(kind), tokenizer, **MORE.get(request.param, {}))


@torch.no_grad()
def columns(model, mixer, prompt):
    """The output projection's input, and what gates it on the way there, (tokens, columns) each."""
    path = mixer.path.rpartition(".")[0]
    part = model.get(path)
    module, gate = model._module.get_submodule(path), None
    with model.trace(prompt, use_cache=False):
        if mixer.kind == "rglru":
            gate = part.linear_y.output.save()
        elif mixer.kind != "attention":
            gate = part.in_proj.output.save()
        read = model.get(mixer.path).input.save()
    return module, read[0].float(), None if gate is None else gate[0].float()


def written(mixer, module, outputs, gate):
    """What becomes of the heads' ``outputs`` before the output projection, by the module's own gate and norm."""
    if mixer.kind == "attention":
        return outputs
    if mixer.kind == "rglru":
        return outputs * module.act_fn(gate)
    if mixer.kind == "mamba":
        return outputs * module.act(gate.chunk(2, -1)[1])
    if hasattr(module, "norm"):
        return module.norm(outputs, gate[..., : outputs.shape[-1]])
    decays = mixer.heads  # Discrete Mamba-2: the gate stands before them
    return outputs * torch.nn.functional.silu(gate[..., -decays - outputs.shape[-1] : -decays] + module.z_bias)


def of(mixer):
    return [Head(mixer.layer, index, mixer.kind) for index in range(mixer.heads)]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_matrix_times_values_is_the_heads_output(model, prompt):
    found = mixings(model, prompt, heads_of(model))
    assert list(found) == list(heads_of(model))
    for mixer in mixers(model):
        here = [found[head] for head in of(mixer)]
        for mixing in here:
            assert mixing.matrix.shape == (len(prompt), len(prompt))
            assert mixing.values.shape == (len(prompt), mixer.width)
            assert torch.equal(mixing.matrix, mixing.matrix.tril())
        module, read, gate = columns(model, mixer, prompt)
        outputs = torch.cat([mixing.matrix @ mixing.values for mixing in here], dim=-1)
        # 1e-4, but for a number or two that a gated norm made larger
        torch.testing.assert_close(written(mixer, module, outputs, gate), read, atol=3e-4, rtol=1e-4)
        torch.testing.assert_close(torch.cat([mixing.output for mixing in here], dim=-1), outputs)


def test_some_heads_alone_are_as_among_all(model):
    everyone, some = mixings(model, PROMPTS[1], heads_of(model)), list(heads_of(model))[1::7]
    for head, mixing in mixings(model, PROMPTS[1], some).items():
        torch.testing.assert_close(mixing.matrix, everyone[head].matrix, atol=1e-6, rtol=1e-5)
    assert mixings(model, PROMPTS[1], []) == {}


def test_without_upstream_heads_the_matrices_are_those_of_a_model_without_them(model):
    """Removed by weight surgery; the layer's own matrices stay, and those downstream change."""
    gone = [head for head in heads_of(model) if head.layer == 0][::2]
    surgery = TransformersModel(weights_without(model, gone), task="text-generation", tokenizer=model.tokenizer)
    view, prompt = knockout(model, gone), PROMPTS[1]
    intact, found, expected = (mixings(each, prompt, heads_of(model)) for each in (model, view, surgery))
    for head in intact:
        torch.testing.assert_close(found[head].matrix, expected[head].matrix, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found[head].values, expected[head].values, atol=1e-5, rtol=1e-4)
        if head.layer == 0:
            torch.testing.assert_close(found[head].matrix, intact[head].matrix)
    for mixer in mixers(model)[1:]:
        assert any((found[head].matrix - intact[head].matrix).abs().max() > 1e-3 for head in of(mixer))


def test_attention_is_that_of_transformers(tmp_path, tokenizer):
    """And the model keeps the implementation that it had."""
    model = load(folder := save_tiny("llama", tmp_path, tokenizer))
    eager = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        expected = eager(tokenizer(PROMPTS[2], return_tensors="pt").input_ids, output_attentions=True).attentions
    before = model.config._attn_implementation
    for head, mixing in mixings(model, PROMPTS[2], ["L0H1", "L2H3"]).items():
        torch.testing.assert_close(mixing.matrix, expected[head.layer][0, head.index], atol=1e-6, rtol=0)
    assert model.config._attn_implementation == before != "eager"


@pytest.mark.parametrize("kind", ["bamba", "jamba", "recurrent_gemma", "llamba"])
def test_of_a_bfloat16_model_matrices_are_float32_and_close(kind, tmp_path, tokenizer):
    model = tiny(kind, tmp_path, tokenizer)
    heads = heads_of(model)
    exact = mixings(model, PROMPTS[1], heads)
    model._module.to(torch.bfloat16)
    for mixer in mixers(model)[:2]:  # deeper layers read what earlier ones rounded
        rough = mixings(model, PROMPTS[1], of(mixer))
        for head, mixing in rough.items():
            assert mixing.matrix.dtype == mixing.values.dtype == torch.float32
            error = (mixing.output - exact[head].output).norm() / exact[head].output.norm()
            assert error < 0.4, head
        errors = torch.cat([(rough[h].output - exact[h].output).flatten() for h in rough])
        assert errors.norm() < 0.05 * torch.cat([exact[h].output.flatten() for h in rough]).norm()


@pytest.mark.parametrize(
    ("prompt", "heads", "error", "message"),
    [
        ("abc", ["L9H0"], ValueError, "L9H0 does not exist"),
        ("abc", ["L0H4"], ValueError, "L0H4 does not exist"),
        ("abc", [Head(0, 0, "mamba2")], ValueError, "layer 0 has attention heads"),
        ("abc", "L0H0", TypeError, "a list of heads"),
        ("", ["L0H0"], ValueError, "empty prompt"),
    ],
)
def test_what_cannot_be_mixed_is_refused(tiny_llama_folder, prompt, heads, error, message):
    with pytest.raises(error, match=message):
        mixings(load(tiny_llama_folder), prompt, heads)
