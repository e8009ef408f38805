"""The last row masked: nothing is written at the target, everything before it stays."""

from __future__ import annotations

import json

import pytest
import torch

from retrieval_heads.interventions.mask import MaskLastRow, mask_last_row
from retrieval_heads.models.families import heads_of, mixers
from retrieval_heads.probe.attribution import attribute
from retrieval_heads.tasks.kv_retrieval import KVRetrieval

from .surgery import logits, zeroed

IDS = torch.tensor([[5, 77, 200, 31, 8, 99, 140, 3], [9, 9, 12, 250, 1, 64, 33, 180]])


def kinds_of(model):
    return sorted({mixer.kind for mixer in mixers(model)})


def test_it_equals_zeros_read_at_the_last_token_alone(family_model):
    intact = logits(family_model, IDS)
    for kind in kinds_of(family_model):
        heads = [head for head in heads_of(family_model) if head.kind == kind]
        found = logits(mask_last_row(family_model, [kind]), IDS)
        torch.testing.assert_close(found, logits(zeroed(family_model, heads, slice(7, 8)), IDS), atol=1e-5, rtol=0)
        torch.testing.assert_close(found[:, :-1], intact[:, :-1], atol=1e-5, rtol=0)
        assert not torch.allclose(found[:, -1], intact[:, -1], atol=1e-2)


def test_attention_that_reads_nothing_is_attention_over_values_of_zero(make):
    """The same in numbers that never touch the projection: the target's row sees only a token whose values are zero."""
    model = make("llama")
    view = mask_last_row(model)
    hidden = model._module.model.embed_tokens(IDS)
    for number, layer in enumerate(model._module.model.layers):
        rest = hidden[:, -1:]
        rest = rest + layer.mlp(layer.post_attention_layernorm(rest))  # the layer, had it no attention
        positions = torch.arange(IDS.shape[1])[None]
        whole = layer(
            hidden, position_embeddings=model._module.model.rotary_emb(hidden, positions), attention_mask=None
        )
        hidden = torch.cat([(whole[0] if isinstance(whole, tuple) else whole)[:, :-1], rest], 1)
        with view.trace(input_ids=IDS, use_cache=False):
            found = view.model.layers[number].output.save()
        torch.testing.assert_close(found, hidden, atol=1e-4, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_no_target(make, side):
    model = make("llama")
    view = mask_last_row(model)
    pads, ones = torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 8, dtype=torch.long)
    join = (lambda a, b: torch.cat([b, a], 1)) if side == "left" else (lambda a, b: torch.cat([a, b], 1))
    ids, mask = join(IDS[:1], pads), join(ones, pads)
    with torch.no_grad():
        padded = view.trace(input_ids=ids, attention_mask=mask, use_cache=False, trace=False).logits
    alone = logits(view, IDS[:1])
    found = padded[:, 3:] if side == "left" else padded[:, :8]
    torch.testing.assert_close(found, alone, atol=1e-4, rtol=0)


def test_a_text_traced_through_the_view_is_masked_at_its_last_token(make):
    view = mask_last_row(make("llama"))
    with view.trace("a:1"), torch.no_grad():
        read = view.model.layers[1].self_attn.o_proj.input.save()
    assert (read[0, -1] == 0).all() and (read[0, :-1] != 0).all()


def test_many_branches_in_one_row_are_refused_where_no_one_says_where_prompts_end(make):
    task = KVRetrieval(pairs=3, dictionaries=1, template="continuation")
    with pytest.raises(ValueError, match="cannot tell where prompts end in a row of many branches"):
        attribute(mask_last_row(make("llama")), task, "gradient")


def test_it_describes_itself():
    assert json.loads(json.dumps(MaskLastRow(("mamba2",)).describe())) == {"mask_last_row": ["mamba2"]}


def test_heads_that_the_model_does_not_have_are_refused(make):
    with pytest.raises(ValueError, match="the model has no 'attention' heads; its heads are mamba2"):
        mask_last_row(make("mamba2"))
