"""What an intervention is: changes to what named modules read or give, made by nnsight."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from ..models.families import Mixer, family, mixers
from ..tasks.items import MARKS

if TYPE_CHECKING:
    from nnsight import Envoy, TransformersModel

# The stages of an answer. The target is the prompt's last token: what is read there decides the first new one.
UNKNOWN, PROMPT, TARGET, GENERATED = range(-1, 3)

# An edit waits for the next step of a generation; nnsight warns, at each plain forward pass, that none came.
warnings.filterwarnings("ignore", message=r"'model\.input\.i\d+' was never reached: the loop asked for a step")


@dataclass(frozen=True)
class Pass:
    """The forward pass that a change is part of.

    Attributes:
        stage: (rows, tokens) int, of each token: ``PROMPT``, ``TARGET``, ``GENERATED`` or ``UNKNOWN``.
        mask: the attention mask that the model was given: (rows, tokens) of 0 and 1, (rows, 1, tokens,
            tokens) of numbers to add, or None.
        positions: (rows, tokens) the position ids that the model was given, or None.
        residual: (rows, tokens, hidden) the residual stream that the edited layer reads.
        marks: (rows, tokens) what each token is marked as (:class:`.Item`): 0, or the place of its mark in
            ``MARKS``, from 1. None in a view, which is given tokens without marks.
    """

    stage: Tensor
    mask: Tensor | None = None
    positions: Tensor | None = None
    residual: Tensor | None = None
    marks: Tensor | None = None

    def since(self, stage: int) -> Tensor:
        """(rows, tokens) bool: whether a token's stage is ``stage`` or a later one.

        Raises:
            ValueError: the stages are unknown.
        """
        if (self.stage == UNKNOWN).any():
            raise ValueError(
                "an applied view cannot tell where prompts end in a row of many branches under one mask; "
                "score the view, which knows, or trace one prompt a row"
            )
        return self.stage >= stage

    def places(self, keys: int) -> Tensor:
        """(rows, tokens) the position of each token in its prompt, where attention reads ``keys`` tokens."""
        if self.positions is not None:
            return self.positions.expand(self.stage.shape)
        rows, tokens = self.stage.shape
        return torch.arange(keys - tokens, keys).expand(rows, -1)

    def marked(self, name: str, keys: int) -> Tensor:
        """(rows, keys) bool: which of the tokens that attention reads are marked as ``name``.

        Raises:
            ValueError: the marks are unknown, or attention does not read every token.
        """
        if self.marks is None:
            raise ValueError(
                f"a view is given tokens, which do not say where the {name} is; score items whose prompts mark it"
            )
        if self.marks.shape[1] != keys:
            raise ValueError(
                f"the prompt has {self.marks.shape[1]} tokens, the attention reads {keys} of them; marks need all: "
                "use prompts that fit the model's window"
            )
        return self.marks == 1 + MARKS.index(name)


def where(tokens: Tensor, yes: Tensor | float, no: Tensor) -> Tensor:
    """``yes`` at the flagged ``tokens`` (rows, tokens), ``no`` at the others.

    ``no`` is what a module gives, (rows, tokens, columns), or attention weights, (rows, heads, tokens, keys).
    """
    tokens = tokens[:, None, :, None] if no.ndim == 4 else tokens[..., None]
    return torch.where(tokens.to(no.device), yes, no)


Change = Callable[[Tensor, Pass], Tensor]


@dataclass(frozen=True)
class Edit:
    """A change to what one module of a layer reads or gives, ``(rows, tokens, columns)`` → the same shape.

    The module is one of the layer's output projections, or the layer itself; or it is the layer's attention, and what
    changes are its weights, (rows, heads, tokens, keys), between softmax and values. That takes eager attention.
    """

    layer: int
    path: str
    change: Change
    side: Literal["input", "output", "weights"] = "input"


class Intervention(Protocol):
    """A description of what to change; it says so in words that can be written to a file."""

    def edits(self, model: TransformersModel) -> list[Edit]:
        """The changes for this model."""

    def describe(self) -> dict:
        """The intervention as JSON data."""


@dataclass(frozen=True)
class Site:
    """Where something is changed, and by whom: (copy, change) pairs, one after the other."""

    layer: int
    path: str
    side: str
    changes: list[tuple[int, Change]]


def sites(model: TransformersModel, edits: Sequence[Sequence[Edit]]) -> list[Site]:
    """The places that ``edits[copy]`` change, in the order in which a forward pass reaches them.

    Raises:
        ValueError: an edit of a module that has no place in that order.
    """
    wanted: dict[tuple[str, str], list[tuple[int, Change]]] = {}
    for copy, own in enumerate(edits):
        for edit in own:
            wanted.setdefault((edit.path, edit.side), []).append((copy, edit.change))
    found, projections = [], mixers(model)
    for layer in range(model.config.num_hidden_layers):
        places = []
        for mixer in (mixer for mixer in projections if mixer.layer == layer):
            places += [(mixer.module, "weights"), (mixer.path, "input"), (mixer.path, "output")]
        places.append((layer_path(model, layer), "output"))
        found += [Site(layer, *place, wanted.pop(place)) for place in places if place in wanted]
    if wanted:
        path, side = min(wanted)
        raise ValueError(
            f"an edit of {path} cannot be placed: its {side} is not that of an output projection of this model, "
            "nor the output of a layer, nor the weights of an attention"
        )
    return found


def perform(model: TransformersModel, places: Sequence[Site], here: Pass) -> None:
    """Make the changes, inside a trace of ``model``; each copy is ``len(here.stage)`` rows of the batch."""
    rows, layer = len(here.stage), None
    for site in places:
        if site.layer != layer:
            layer = site.layer
            residual = model.get(layer_path(model, layer)).input
        module, side = model.get(site.path), site.side
        if side == "weights":
            module, side = _dropout(module), "output"
        whole = getattr(module, side)
        values = (whole[0] if isinstance(whole, tuple) else whole).clone()  # Bamba's layers give tuples
        for copy, change in site.changes:
            mine = slice(copy * rows, (copy + 1) * rows)
            values[mine] = change(values[mine], replace(here, residual=residual[mine]))
        setattr(module, side, (values, *whole[1:]) if isinstance(whole, tuple) else values)


def _dropout(attention: Envoy) -> Any:
    """The call in eager attention that gives its weights last, before they meet the values.

    Every family's attention calls ``attention_interface`` (the first occurrence of the name is its assignment), and
    their eager functions are the same text.
    """
    return attention.source.attention_interface_1.source.nn_functional_dropout_0


def layer_path(model: TransformersModel, layer: int) -> str:
    """The path of a layer's module."""
    return f"{family(model).layers}.{layer}"


def check_layers(model: TransformersModel, layers: Iterable[int]) -> list[int]:
    """The layers in ascending order, each once.

    Raises:
        ValueError: a layer that the model does not have.
    """
    count, layers = model.config.num_hidden_layers, sorted(set(layers))
    for layer in layers:
        if not 0 <= layer < count:
            raise ValueError(f"layer {layer} does not exist: the model's layers are 0 to {count - 1}")
    return layers


def check_kinds(model: TransformersModel, kinds: Iterable[str]) -> list[str]:
    """The kinds of heads, as a list.

    Raises:
        ValueError: a kind that the model does not have.
    """
    found, kinds = sorted({mixer.kind for mixer in mixers(model)}), list(kinds)
    for kind in kinds:
        if kind not in found:
            raise ValueError(f"the model has no {kind!r} heads; its heads are {' and '.join(found)}")
    return kinds


def attentions(model: TransformersModel) -> list[Mixer]:
    """The model's attention layers, whose weights an edit can change.

    Raises:
        ValueError: it has none, or its attention does not compute its weights as a matrix.
    """
    check_kinds(model, ["attention"])
    if model.config._attn_implementation != "eager":
        raise ValueError(
            f"attention weights exist under eager attention only, not under {model.config._attn_implementation!r}: "
            'load(name, attn_implementation="eager")'
        )
    return [mixer for mixer in mixers(model) if mixer.kind == "attention"]


def apply(model: TransformersModel, intervention: Intervention) -> TransformersModel:
    """An edited view of ``model``: every trace and every ``generate`` of it runs under the intervention.

    The weights are shared and ``model`` itself stays as it was. Views compose: ``apply`` an
    intervention to a view, and both hold. In a trace the last token of each row is the target; in
    ``generate`` the first pass is the prefill, and every later one a generation step.
    """
    places = sites(model, [intervention.edits(model)])
    if not places:
        return model
    with model.edit() as (tracer, view):
        for step in tracer.iter[:]:  # every step of a generation, not only the first
            perform(view, places, _here(*view.inputs, step))
    bare, before = unapplied(model)
    view._applied = (bare, (*before, intervention), len(view._edits))
    return view


def unapplied(model: TransformersModel) -> tuple[TransformersModel, tuple[Intervention, ...]]:
    """The model below the views that :func:`apply` made, and what they apply, in order.

    Raises:
        ValueError: a view of somebody else's edits upon one of ``apply``'s.
    """
    bare, interventions, edits = vars(model).get("_applied", (model, (), len(model._edits)))
    if edits != len(model._edits):
        raise ValueError("this view has edits of its own upon applied interventions; edit first, then apply")
    return bare, interventions


def _here(args: tuple, kwargs: dict[str, Any], step: int) -> Pass:
    """The pass that the model's own arguments describe."""
    given = (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args)
    tokens = next(value for value in given if isinstance(value, Tensor))
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    branches = mask is not None and mask.ndim == 4
    stage = torch.full(tokens.shape[:2], UNKNOWN if branches else GENERATED if step else PROMPT, device=tokens.device)
    if step == 0 and not branches:
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        real = mask if mask is not None and mask.shape == stage.shape else torch.ones_like(stage)
        last = (real.to(columns.device) * columns).amax(1, keepdim=True)
        stage[columns >= last] = TARGET  # right padding counts as target: `generate` reads its last column
    return Pass(stage, mask, positions)
