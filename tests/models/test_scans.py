"""The faster scans against transformers' own loops: outputs, states and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.falcon_mamba import modeling_falcon_mamba
from transformers.models.mamba2 import modeling_mamba2
from transformers.models.recurrent_gemma import modeling_recurrent_gemma

from retrieval_heads.models import scans

from ..families import OPTIONS, SIZES

LENGTHS = [1, 7, 45]


def reference(function):
    """transformers' own function, under the wrapper that `install` may have put around it."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def check(fast, slow, tensors: dict[str, torch.Tensor], **options) -> None:
    """Both give the same outputs, and the same gradients of a random sum of them."""
    results = []
    for function in (fast, slow):
        inputs = {name: tensor.clone().requires_grad_(tensor.is_floating_point()) for name, tensor in tensors.items()}
        outputs = function(**inputs, **options)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        # A state may come back detached; what follows from it is not trained through.
        weighted = sum((o * torch.linspace(-1, 1, o.numel()).view_as(o)).sum() for o in outputs[:1])
        weighted.backward()
        # What an output does not depend on has no gradient, or a zero one.
        grads = [t.new_zeros(t.shape) if t.grad is None else t.grad for t in inputs.values() if t.requires_grad]
        results.append([*outputs, *grads])
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("length", LENGTHS)
def test_mamba_1_equals_the_loop(length):
    torch.manual_seed(length)
    batch, channels, state = 2, 6, 4
    tensors = {
        "hidden_states": torch.randn(batch, channels, length),
        "dt": torch.randn(batch, channels, length),
        "A": -torch.rand(channels, state) - 0.1,
        "B": torch.randn(batch, state, length),
        "C": torch.randn(batch, state, length),
        "D": torch.randn(channels),
        "z": torch.randn(batch, channels, length),
        "delta_bias": torch.randn(channels),
    }
    slow = reference(modeling_falcon_mamba.mamba_selective_scan)
    check(scans.selective_scan, slow, tensors, delta_softplus=True, return_last_state=True)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("started", [False, True])
def test_mamba_2_equals_the_chunks_of_transformers(length, started):
    torch.manual_seed(length)
    batch, heads, width, groups, state = 2, 4, 3, 2, 5
    tensors = {
        "hidden_states": torch.randn(batch, length, heads, width),
        "dt": torch.randn(batch, length, heads),
        "A": -torch.rand(heads) - 0.1,
        "B": torch.randn(batch, length, groups, state),
        "C": torch.randn(batch, length, groups, state),
        "D": torch.randn(heads),
        "dt_bias": torch.randn(heads),
    }
    if started:
        tensors["initial_states"] = torch.randn(batch, heads, width, state)
    options = {"chunk_size": 8, "dt_softplus": True, "dt_limit": (0.2, 1.5), "return_final_states": True}
    check(scans.chunk_scan, reference(modeling_mamba2.mamba2_chunk_scan), tensors, **options)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("started", [False, True])
def test_the_rg_lru_equals_the_loop(length, started):
    torch.manual_seed(length)
    shape = (2, length, 6)
    tensors = {
        "hidden_states": torch.randn(shape),
        "recurrent_gate": torch.rand(shape),
        "reset": torch.rand(2, length, 1) < 0.2,
        "recurrent_states": torch.randn(2, 6),
    }
    if not started:
        del tensors["recurrent_states"]
    options = {} if started else {"recurrent_states": None}
    slow = reference(modeling_recurrent_gemma.RecurrentGemmaRglru._rnn_scan)
    if length == 1 and not started:
        tensors["reset"][:] = True  # transformers' single step knows no start other than a reset
    check(lambda **t: scans.rnn_scan(None, **t), lambda **t: slow(None, **t), tensors, **options)


RECURRENT = ["mamba", "falcon_mamba", "jamba", "mamba2", "zamba2", "bamba", "recurrent_gemma"]


@pytest.mark.parametrize("kind", RECURRENT)
def test_whole_models_are_the_same_after_install(kind, monkeypatch):
    module = __import__(f"transformers.models.{kind}.modeling_{kind}", fromlist=["_"])
    rglru = modeling_recurrent_gemma.RecurrentGemmaRglru
    places = [(module, "mamba_selective_scan"), (module, "mamba2_chunk_scan"), (rglru, "_rnn_scan")]
    places = [(owner, name) for owner, name in places if hasattr(owner, name)]
    for owner, name in places:
        monkeypatch.setattr(owner, name, reference(getattr(owner, name)))
    config = AutoConfig.for_model(
        kind, **{**SIZES, "vocab_size": 50, "eos_token_id": 0, "pad_token_id": 0, **OPTIONS[kind]}
    )
    torch.manual_seed(0)
    model, ids = AutoModelForCausalLM.from_config(config), torch.randint(1, 50, (2, 21))

    def run() -> list[torch.Tensor]:
        model.zero_grad()
        logits = model(input_ids=ids, use_cache=False).logits
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        return [logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    slow = run()
    scans.install.__wrapped__()  # again, over the references that stand there now
    assert any(getattr(owner, name) is not reference(getattr(owner, name)) for owner, name in places)
    for found, expected in zip(run(), slow, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
