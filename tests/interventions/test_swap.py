"""A swapped layer is one with the teacher's attention put into it."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from retrieval_heads.heads import HeadSet
from retrieval_heads.interventions.edits import apply
from retrieval_heads.interventions.knockout import knockout
from retrieval_heads.interventions.swap import Swap, swap
from retrieval_heads.models.families import heads_of, mixers

from .surgery import generated, logits, swapped

IDS = torch.tensor([[5, 77, 200, 31, 8, 99, 140, 3], [9, 9, 12, 250, 1, 64, 33, 180]])
LAYER = 2  # Zamba2 and the hybrids have attention here


def columns(heads):
    return [column for head in heads for column in range(12 * head, 12 * head + 12)]


def test_the_teachers_mixer_equals_its_module_in_a_copy_of_the_student(family_model, teacher):
    found = logits(swap(family_model, teacher, LAYER), IDS)
    torch.testing.assert_close(found, logits(swapped(family_model, teacher, LAYER), IDS), atol=1e-5, rtol=0)
    assert not torch.allclose(found, logits(family_model, IDS), atol=1e-2)


def test_between_models_of_one_shape_it_is_a_module_moved(make, teacher):
    student = make("llama", num_key_value_heads=4)
    module = copy.deepcopy(student._module)
    module.model.layers[1].self_attn = teacher._module.model.layers[1].self_attn
    module.model.layers[1].input_layernorm = teacher._module.model.layers[1].input_layernorm
    torch.testing.assert_close(logits(swap(student, teacher, 1), IDS), logits(module, IDS), atol=1e-5, rtol=0)


def test_all_heads_are_the_whole_mixer(family_model, teacher):
    every = [head for head in heads_of(teacher) if head.layer == LAYER]
    for student in ([head for head in heads_of(family_model) if head.layer == LAYER], None):
        found = logits(swap(family_model, teacher, LAYER, every, student), IDS)
        if student and family_model.config.model_type == "recurrent_gemma":
            continue  # its heads gone one by one leave the bias
        torch.testing.assert_close(found, logits(swap(family_model, teacher, LAYER), IDS), atol=1e-4, rtol=0)


def test_some_heads_come_in_through_their_own_columns(family_model, teacher):
    found = logits(swap(family_model, teacher, LAYER, ["L2H1", "L2H3"]), IDS)
    expected = logits(swapped(family_model, teacher, LAYER, columns([1, 3])), IDS)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_some_heads_give_way_and_the_others_stay(family_model, teacher):
    mixer = [mixer for mixer in mixers(family_model) if mixer.layer == LAYER][-1]
    gone = [
        head for head in heads_of(family_model) if (head.layer, head.kind) == (LAYER, mixer.kind) and head.index < 2
    ]
    stay = range(2 * mixer.width, mixer.heads * mixer.width)
    found = logits(swap(family_model, teacher, LAYER, ["L2H0"], gone), IDS)
    expected = logits(swapped(family_model, teacher, LAYER, columns([0]), stay), IDS)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_no_heads_in_and_none_out_is_the_intact_model(make, teacher):
    model = make("mamba2")
    torch.testing.assert_close(logits(swap(model, teacher, 1, [], []), IDS), logits(model, IDS), atol=1e-5, rtol=0)


def test_a_recurrent_teacher_lends_its_mixer_too(make):
    student, teacher = make("llama"), make("mamba2")
    module, block = copy.deepcopy(student._module), teacher._module.backbone.layers[1]

    class Mixer(torch.nn.Module):
        def forward(self, hidden_states, **kwargs):
            return block.mixer(hidden_states), None

    module.model.layers[1].self_attn, module.model.layers[1].input_layernorm = Mixer(), block.norm
    torch.testing.assert_close(logits(swap(student, teacher, 1), IDS), logits(module, IDS), atol=1e-4, rtol=0)


def test_views_compose_and_the_teacher_may_be_a_view(make, teacher):
    model, before = make("mamba2"), logits(teacher, IDS)
    one = swap(knockout(model, ["L0H1"]), knockout(teacher, ["L2H0", "L2H2"]), LAYER)
    other = knockout(swap(model, teacher, LAYER, ["L2H1", "L2H3"]), ["L0H1"])
    torch.testing.assert_close(logits(one, IDS), logits(other, IDS), atol=1e-4, rtol=0)
    torch.testing.assert_close(logits(teacher, IDS), before, atol=0, rtol=0)


def test_rows_padded_on_the_left_generate_as_they_do_alone(make, teacher):
    for kind in ("llama", "mamba2"):
        view = swap(make(kind), teacher, LAYER)
        ids = torch.cat([torch.tensor([[0, 0, 0]]), IDS[:1, 3:]], 1)
        mask = torch.ones_like(IDS)
        mask[1, :3] = 0
        together = generated(view, torch.cat([IDS[:1], ids]), attention_mask=mask)[0]
        torch.testing.assert_close(together[:1], generated(view, IDS[:1])[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(together[1:], generated(view, IDS[:1, 3:])[0], atol=1e-4, rtol=0)


def test_a_second_generation_does_not_remember_the_first(make, teacher):
    view = swap(make("mamba2"), teacher, LAYER)
    once = generated(view, IDS)[0]
    generated(view, IDS.flip(1))
    torch.testing.assert_close(generated(view, IDS)[0], once, atol=0, rtol=0)


def test_it_describes_itself_down_to_the_teachers_weights(make, teacher):
    described = Swap(teacher, 2, HeadSet(["L2H1"])).describe()["swap"]
    assert json.loads(json.dumps(described)) == described
    assert (described["heads"], described["student_heads"], described["teacher"]["layer"]) == (["L2H1"], None, 2)
    other = Swap(make("llama"), 2, HeadSet(["L2H1"])).describe()["swap"]
    assert other["teacher"]["fingerprint"] != described["teacher"]["fingerprint"]


@pytest.mark.parametrize(
    ("layer", "heads", "student_heads", "message"),
    [
        (3, None, None, "layer 3 does not exist: the model's layers are 0 to 2"),
        (1, ["L2H1"], None, "the teacher's L2H1 is not in layer 1, the one that is swapped"),
        (1, None, ["L0H1"], "the student's L0H1:mamba2 is not in layer 1"),
        (1, ["L1H9"], None, "L1H9 does not exist"),
    ],
)
def test_what_does_not_exist_is_refused(make, teacher, layer, heads, student_heads, message):
    with pytest.raises(ValueError, match=message):
        swap(make("mamba2"), teacher, layer, heads, student_heads)


def test_a_teacher_that_does_not_fit_is_refused(make, teacher):
    with pytest.raises(ValueError, match="the teacher's residual stream has 24 columns, the student's 48"):
        apply(make("mamba2"), Swap(make("recurrent_gemma", hidden_size=24, head_dim=6), 1))
    with pytest.raises(ValueError, match="teacher and student are the same model"):
        swap(teacher, knockout(teacher, ["L0H0"]), 1)
    with pytest.raises(ValueError, match="layer 2 of the teacher has 2 mixers"):
        swap(make("mamba2"), make("zamba2"), 2)
