"""Written answers, against transformers' own generation, one prompt at a time with a cache."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from retrieval_heads.heads import HeadSet
from retrieval_heads.interventions.during import During
from retrieval_heads.interventions.edits import apply
from retrieval_heads.interventions.knockout import Knockout, knockout
from retrieval_heads.models.families import FAMILIES, heads_of, random_heads
from retrieval_heads.models.loading import load
from retrieval_heads.probe.writing import write
from retrieval_heads.tasks.items import Item

from ..families import save_tiny

ITEMS = [
    Item("", prompt, ("x", "y"), 0) for prompt in ("a:1\nb:22\nb:", "longer than the others:", "cc:dd", "a:1\nb:2\na:")
]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request, tiny_llama_folder, tmp_path_factory):
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama_folder)
    # The floor is explained in the conftest of the interventions.
    floor = {"time_step_min": 1e-12} if request.param == "zamba2" else {}
    return load(save_tiny(request.param, tmp_path_factory.mktemp(request.param), tokenizer, **floor))


def generated(model, view, item, tokens):
    ids = torch.tensor([model.tokenizer(item.prompt).input_ids])
    answer = view.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return model.tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True)


def test_it_writes_what_a_generation_of_each_prompt_alone_writes(model):
    out = Knockout(random_heads(model, len(heads_of(model)) // 3, seed=1))
    views = {Knockout(HeadSet()): model, out: apply(model, out)}
    views |= {During(out, when): apply(model, During(out, when)) for when in ("prefill", "generation")}
    texts = []
    for intervention, view in views.items():
        texts.append(write(model, ITEMS, intervention, tokens=4))
        assert texts[-1] == [generated(model, view, item, 4) for item in ITEMS]
    assert texts[0] != texts[1]


def test_a_view_writes_under_its_own_edits_too(tiny_llama_folder):
    model = load(tiny_llama_folder)
    heads = list(heads_of(model))[:4]
    assert write(knockout(model, heads), ITEMS) == write(model, ITEMS, Knockout(HeadSet(heads)))


def test_it_stops_at_the_end_of_the_text(tiny_llama_folder):
    model = load(tiny_llama_folder)
    with model.trace(ITEMS[0].prompt):
        first = model.output.logits[0, -1].argmax().save()
    model.tokenizer.eos_token = model.tokenizer.convert_ids_to_tokens(int(first))
    assert write(model, ITEMS[:1], tokens=9) == [model.tokenizer.decode(int(first))]


def test_no_items_are_refused(tiny_llama_folder):
    with pytest.raises(ValueError, match="there are no items to answer"):
        write(load(tiny_llama_folder), [])
