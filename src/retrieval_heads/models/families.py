"""Where each architecture keeps its mixing heads: one table instead of a class per architecture.

A mixing head (paper A, section 2) is a slice of the input of a layer's output projection:
``heads × width`` columns, the head's own ``width`` of them. That one definition serves every
family, so a row of this table is all that an architecture needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..heads import Head, HeadSet

if TYPE_CHECKING:
    from nnsight import TransformersModel


@dataclass(frozen=True)
class Row:
    """One kind of mixing head of a family: where its output projection is, how many heads, how wide."""

    kind: str
    path: str  # of the output projection; {i} stands for the layer
    heads: Callable[[Any], int]
    width: Callable[[Any], int]
    in_layer: Callable[[Any, int], bool] = lambda config, i: True


@dataclass(frozen=True)
class Family:
    """A family's layers and its kinds of heads, in the order in which a layer runs them."""

    layers: str
    rows: tuple[Row, ...]
    packs: bool = False  # every mixer obeys an attention mask, so many branches fit one pass


@dataclass(frozen=True)
class Mixer:
    """One layer's output projection: its input has ``heads × width`` columns."""

    layer: int
    kind: str
    path: str
    heads: int
    width: int

    def columns(self, head: Head) -> slice:
        """The columns of the projection's input that are ``head``."""
        return slice(head.index * self.width, (head.index + 1) * self.width)


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _in(*types: str) -> Callable[[Any, int], bool]:
    return lambda config, i: config.layer_types[i] in types


FULL = _in("full_attention", "sliding_attention")
RECURRENT = _in("linear_attention")
SHARED = _in("hybrid")  # Zamba2: the shared attention block, then a Mamba-2 mixer


def _attention(path: str, in_layer: Callable[[Any, int], bool] = lambda config, i: True) -> Row:
    return Row("attention", path, lambda c: c.num_attention_heads, _head_dim, in_layer)


TRANSFORMER = Family("model.layers", (_attention("model.layers.{i}.self_attn.o_proj"),), packs=True)
# In Mamba-1 and in the RG-LRU every channel has a decay of its own: a head is one channel.
MAMBA = Family(
    "backbone.layers",
    (Row("mamba", "backbone.layers.{i}.mixer.out_proj", lambda c: c.intermediate_size, lambda c: 1),),
)
MAMBA2 = Family(
    "backbone.layers",
    (Row("mamba2", "backbone.layers.{i}.mixer.out_proj", lambda c: c.num_heads, lambda c: c.head_dim),),
)
_ZAMBA2_MAMBA = (lambda c: c.n_mamba_heads, lambda c: c.mamba_headdim)
ZAMBA2 = Family(
    "model.layers",
    (
        _attention("model.layers.{i}.shared_transformer.self_attn.o_proj", SHARED),
        Row("mamba2", "model.layers.{i}.mamba_decoder.mamba.out_proj", *_ZAMBA2_MAMBA, SHARED),
        Row("mamba2", "model.layers.{i}.mamba.out_proj", *_ZAMBA2_MAMBA, RECURRENT),
    ),
)
RECURRENT_GEMMA = Family(
    "model.layers",
    (
        _attention("model.layers.{i}.temporal_block.o_proj", FULL),
        Row("rglru", "model.layers.{i}.temporal_block.linear_out", lambda c: c.lru_width, lambda c: 1, RECURRENT),
    ),
)
JAMBA = Family(
    "model.layers",
    (
        _attention("model.layers.{i}.self_attn.o_proj", FULL),
        Row(
            "mamba", "model.layers.{i}.mamba.out_proj", lambda c: c.mamba_expand * c.hidden_size, lambda c: 1, RECURRENT
        ),
    ),
)
BAMBA = Family(
    "model.layers",
    (
        _attention("model.layers.{i}.self_attn.o_proj", FULL),
        Row(
            "mamba2", "model.layers.{i}.mamba.out_proj", lambda c: c.mamba_n_heads, lambda c: c.mamba_d_head, RECURRENT
        ),
    ),
)

# By `config.model_type`. A new architecture of a known shape is one more line here.
FAMILIES: dict[str, Family] = {
    "llama": TRANSFORMER,
    "mistral": TRANSFORMER,
    "qwen2": TRANSFORMER,
    "qwen3": TRANSFORMER,
    "gemma": TRANSFORMER,
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    "mamba2": MAMBA2,
    "llamba": MAMBA2,
    "zamba2": ZAMBA2,
    "recurrent_gemma": RECURRENT_GEMMA,
    "jamba": JAMBA,
    "bamba": BAMBA,
}


def family(model: TransformersModel) -> Family:
    """The family of a loaded model.

    Raises:
        ValueError: the architecture is not in the table.
    """
    kind = model.config.model_type
    if kind not in FAMILIES:
        raise ValueError(
            f"architecture {kind!r} is not in the table of families ({', '.join(sorted(FAMILIES))}); add it to "
            f'retrieval_heads.models.families: FAMILIES["{kind}"] = Family(layers, rows), where a row names the '
            "output projection of a layer, the number of heads and their width"
        )
    return FAMILIES[kind]


def packs(model: TransformersModel, longest: int) -> bool:
    """Whether branches of up to ``longest`` tokens may share one pass under a mask of one's own.

    They may where every mixer obeys the mask, and none looks only at a window shorter than the
    branch: the mask would replace the window. Flash attention takes no such mask.
    """
    config = model.config
    if config._attn_implementation not in ("sdpa", "eager"):
        return False
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return family(model).packs and (window is None or longest <= window)


def mixers(model: TransformersModel) -> list[Mixer]:
    """Every output projection of the model, in the order in which a forward pass reaches them.

    Raises:
        ValueError: the architecture is not in the table, or the table does not fit this model.
    """
    config, found = model.config, []
    for i in range(config.num_hidden_layers):
        for row in family(model).rows:
            if row.in_layer(config, i):
                mixer = Mixer(i, row.kind, row.path.format(i=i), row.heads(config), row.width(config))
                columns = model._module.get_submodule(mixer.path).in_features
                if mixer.heads * mixer.width != columns:
                    raise ValueError(
                        f"the table says {mixer.heads} × {mixer.width} columns at {mixer.path}, "
                        f"the model has {columns}; correct the row of {config.model_type!r}"
                    )
                found.append(mixer)
    return found


def heads_of(model: TransformersModel) -> HeadSet:
    """Every mixing head of the model."""
    return HeadSet(Head(m.layer, i, m.kind) for m in mixers(model) for i in range(m.heads))


def random_heads(model: TransformersModel, count: int, *, besides: Iterable[Head | str] = (), seed: int = 0) -> HeadSet:
    """``count`` random heads of the model, none of them in ``besides``: a control for a choice of heads.

    Raises:
        ValueError: the model has fewer such heads.
    """
    others = list(heads_of(model) - resolve(model, besides))
    if not 0 <= count <= len(others):
        raise ValueError(f"count={count} is not between 0 and the {len(others)} heads there are to draw from")
    return HeadSet(random.Random(seed).sample(others, count))


def resolve(model: TransformersModel, heads: Iterable[Head | str]) -> HeadSet:
    """The heads, parsed and checked against the model.

    A head written without a kind takes the kind of its layer; in a layer with two kinds it means attention.

    Raises:
        TypeError: one head instead of a list.
        ValueError: a head that the model does not have.
    """
    if isinstance(heads, str | Head):
        raise TypeError(f"a list of heads is needed, not one: [{str(heads)!r}]")
    kinds: dict[int, dict[str, int]] = {}
    for mixer in mixers(model):
        kinds.setdefault(mixer.layer, {})[mixer.kind] = mixer.heads
    return HeadSet(_resolve_one(head, kinds) for head in heads)


def _resolve_one(head: Head | str, kinds: dict[int, dict[str, int]]) -> Head:
    if isinstance(head, str):
        layer = Head.parse(head).layer
        default = "attention" if "attention" in kinds.get(layer, {}) else next(iter(kinds.get(layer, {})), "attention")
        head = Head.parse(head, kind=default)
    if head.layer not in kinds:
        raise ValueError(f"{head} does not exist: the model's layers with heads are {min(kinds)} to {max(kinds)}")
    here = kinds[head.layer]
    if head.kind not in here:
        raise ValueError(f"{head} does not exist: layer {head.layer} has {' and '.join(here)} heads")
    if head.index >= here[head.kind]:
        raise ValueError(f"{head} does not exist: layer {head.layer} has {head.kind} heads 0 to {here[head.kind] - 1}")
    return head
