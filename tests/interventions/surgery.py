"""Oracles for the interventions: copies of the torch module with other parts in them; no nnsight, no edits."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import nn
from torch.nn.functional import linear

from retrieval_heads.models.families import family, mixers
from retrieval_heads.probe.encoding import encode


class Part(nn.Module):
    """A function in the place of a module; ``inner`` is the module that was there."""

    def __init__(self, inner, function):
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, *args, **kwargs):
        return self.function(self.inner, *args, **kwargs)


def replaced(module, path, function):
    """Put ``function(inner, *args, **kwargs)`` in the place of the module at ``path``."""
    parent, name = path.rsplit(".", 1)
    setattr(module.get_submodule(parent), name, Part(module.get_submodule(path), function))


def without_layers(model, gone):
    """A copy in which the layers ``gone`` give what they read."""
    module = copy.deepcopy(model._module)
    for layer in gone:
        tupled = model.config.model_type == "bamba"
        replaced(
            module,
            f"{family(model).layers}.{layer}",
            lambda inner, hidden, *args, tupled=tupled, **kwargs: (hidden, None) if tupled else hidden,
        )
    return module


def without_mixers(model, layers):
    """A copy in which the last projection of each of these layers has neither weight nor bias."""
    module = copy.deepcopy(model._module)
    for layer in layers:
        path = [mixer.path for mixer in mixers(model) if mixer.layer == layer][-1]
        projection = module.get_submodule(path)
        projection.weight = nn.Parameter(torch.zeros_like(projection.weight))
        if projection.bias is not None:
            projection.bias = nn.Parameter(torch.zeros_like(projection.bias))
    return module


def zeroed(model, heads, tokens):
    """A copy whose projections read zeros at ``tokens``, a slice, in the columns of ``heads``."""
    module = copy.deepcopy(model._module)
    for mixer in mixers(model):
        columns = torch.zeros(mixer.heads * mixer.width, dtype=torch.bool)
        for head in heads:
            if (head.layer, head.kind) == (mixer.layer, mixer.kind):
                columns[mixer.columns(head)] = True

        def read(inner, values, columns=columns):
            values = values.clone()
            values[:, tokens] *= ~columns
            return inner(values)

        replaced(module, mixer.path, read)
    return module


def swapped(model, teacher, layer, columns=None, stay=()):
    """A copy whose ``layer`` adds what the teacher's Llama attention reads; ``stay``: the student's columns left.

    Args:
        columns: those of the teacher's output projection that come in; None for all.
    """
    module, source = copy.deepcopy(model._module), teacher._module.model
    block = source.layers[layer]
    attention = copy.deepcopy(block.self_attn)
    if columns is not None:
        keep = torch.zeros(attention.o_proj.in_features)
        keep[columns] = 1
        attention.o_proj.weight.data *= keep
    added = {}

    def listen(inner, hidden, *args, **kwargs):
        positions = torch.arange(hidden.shape[1])[None]
        mask = torch.full((hidden.shape[1],) * 2, torch.finfo(hidden.dtype).min).triu(1)[None, None]
        rotation = source.rotary_emb(hidden, positions)
        added["now"] = attention(block.input_layernorm(hidden), position_embeddings=rotation, attention_mask=mask)[0]
        return inner(hidden, *args, **kwargs)

    path = [mixer.path for mixer in mixers(model) if mixer.layer == layer][-1]
    replaced(module, f"{family(model).layers}.{layer}", listen)
    keep = torch.zeros(module.get_submodule(_inside(path, layer)).in_features)
    keep[list(stay)] = 1
    bias = bool(len(stay))

    def give_way(inner, values):
        return linear(values * keep, inner.weight, inner.bias if bias else None) + added["now"]

    replaced(module, _inside(path, layer), give_way)
    return module


def _inside(path, layer):
    """The path of what was at ``path`` before its layer was replaced."""
    return path.replace(f"layers.{layer}.", f"layers.{layer}.inner.")


def naive(run, model, item):
    """(candidates,) scores of the module or view ``run``, a full pass for each candidate."""
    (encoded,) = encode([item], model.tokenizer)
    scores = []
    for candidate in encoded.candidates:
        ids = torch.tensor([[*encoded.prompt, *candidate]])
        logprobs = logits(run, ids)[0].log_softmax(-1)
        reads = zip(range(len(encoded.prompt) - 1, ids.shape[1] - 1), candidate)
        scores.append(sum(logprobs[at, token].item() for at, token in reads))
    return scores


@torch.no_grad()
def logits(model, ids):
    """What a module, a model or a view gives for ``ids``, in one pass."""
    run = model if isinstance(model, nn.Module) else partial(model.trace, trace=False)
    return run(input_ids=ids, use_cache=False).logits


def generated(model, ids, steps=5, **options):
    """(rows, steps, vocabulary) logits and (rows, steps) tokens of a greedy generation."""
    options = {"attention_mask": torch.ones_like(ids), **options}
    answer = model.generate(
        input_ids=ids,
        max_new_tokens=steps,
        do_sample=False,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    return torch.stack(answer.logits, 1), answer.sequences[:, ids.shape[1] :]


def check_generation(view, oracle, ids, **options):
    """The view writes, with a cache, what the oracle writes (``options`` for the oracle), at every step."""
    found, expected = generated(view, ids), generated(oracle, ids, **options)
    torch.testing.assert_close(found[0], expected[0], atol=2e-4, rtol=0)
    assert torch.equal(found[1], expected[1])
