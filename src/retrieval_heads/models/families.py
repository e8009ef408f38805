"""Where each architecture keeps its mixing heads: one table instead of a class per architecture.

A mixing head (paper A, section 2) is a slice of the input of a layer's output projection:
``heads × width`` columns, the head's own ``width`` of them. That one definition serves every
family, so a row of this table is all that an architecture needs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..heads import Head, HeadSet

if TYPE_CHECKING:
    from nnsight import TransformersModel
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Row:
    """One kind of mixing head of a family: where its output projection is, how many heads, how wide.

    Attributes:
        path: of the output projection; {i} stands for the layer.
        heads, width: a field of the config, a product of fields such as ``mamba_expand * hidden_size``, or a number.
        layer_types: the layers that have such heads, by ``config.layer_types``; empty is every layer.
    """

    kind: str
    path: str
    heads: str
    width: str
    layer_types: tuple[str, ...] = ()

    def in_layer(self, config: PreTrainedConfig, i: int) -> bool:
        return not self.layer_types or config.layer_types[i] in self.layer_types


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

    @property
    def module(self) -> str:
        """The path of the mixer itself, which holds the projection."""
        return self.path.rpartition(".")[0]

    def columns(self, head: Head) -> slice:
        """The columns of the projection's input that are ``head``."""
        return slice(head.index * self.width, (head.index + 1) * self.width)


ATTENTION = ("num_attention_heads", "head_dim")
FULL = ("full_attention", "sliding_attention")
RECURRENT = ("linear_attention",)
SHARED = ("hybrid",)  # Zamba2: the shared attention block, then a Mamba-2 mixer

TRANSFORMER = Family("model.layers", (Row("attention", "model.layers.{i}.self_attn.o_proj", *ATTENTION),), packs=True)
# In Mamba-1 and in the RG-LRU every channel has a decay of its own: a head is one channel.
MAMBA = Family("backbone.layers", (Row("mamba", "backbone.layers.{i}.mixer.out_proj", "intermediate_size", "1"),))
MAMBA2 = Family("backbone.layers", (Row("mamba2", "backbone.layers.{i}.mixer.out_proj", "num_heads", "head_dim"),))
ZAMBA2 = Family(
    "model.layers",
    (
        Row("attention", "model.layers.{i}.shared_transformer.self_attn.o_proj", *ATTENTION, SHARED),
        Row("mamba2", "model.layers.{i}.mamba_decoder.mamba.out_proj", "n_mamba_heads", "mamba_headdim", SHARED),
        Row("mamba2", "model.layers.{i}.mamba.out_proj", "n_mamba_heads", "mamba_headdim", RECURRENT),
    ),
)
RECURRENT_GEMMA = Family(
    "model.layers",
    (
        Row("attention", "model.layers.{i}.temporal_block.o_proj", *ATTENTION, FULL),
        Row("rglru", "model.layers.{i}.temporal_block.linear_out", "lru_width", "1", RECURRENT),
    ),
)
JAMBA = Family(
    "model.layers",
    (
        Row("attention", "model.layers.{i}.self_attn.o_proj", *ATTENTION, FULL),
        Row("mamba", "model.layers.{i}.mamba.out_proj", "mamba_expand * hidden_size", "1", RECURRENT),
    ),
)
BAMBA = Family(
    "model.layers",
    (
        Row("attention", "model.layers.{i}.self_attn.o_proj", *ATTENTION, FULL),
        Row("mamba2", "model.layers.{i}.mamba.out_proj", "mamba_n_heads", "mamba_d_head", RECURRENT),
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


def family(model: TransformersModel | PreTrainedModel | PreTrainedConfig) -> Family:
    """The family of a model or of a config.

    Raises:
        ValueError: the architecture is not in the table; the message has a row to start from.
    """
    kind = _config(model).model_type
    if kind not in FAMILIES:
        raise ValueError(
            f"architecture {kind!r} is not in the table of families ({', '.join(sorted(FAMILIES))}); add it first, "
            "with the names of its own modules and config: "
            "from retrieval_heads.models.families import FAMILIES, Family, Row; "
            f'FAMILIES["{kind}"] = Family("model.layers", (Row("attention", "model.layers.{{i}}.self_attn.o_proj", '
            '"num_attention_heads", "head_dim"),))'
        )
    return FAMILIES[kind]


def _config(model: TransformersModel | PreTrainedModel | PreTrainedConfig) -> PreTrainedConfig:
    return getattr(model, "config", model)


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


def mixers(model: TransformersModel | PreTrainedModel | PreTrainedConfig) -> list[Mixer]:
    """Every output projection of the model, in the order in which a forward pass reaches them.

    A config is enough; with a model, its modules are compared with the table.

    Raises:
        ValueError: the architecture is not in the table, or the table does not fit this model.
    """
    config = _config(model)
    found = [
        Mixer(i, row.kind, row.path.format(i=i), _value(config, row.heads), _value(config, row.width))
        for i in range(config.num_hidden_layers)
        for row in family(config).rows
        if row.in_layer(config, i)
    ]
    if model is not config:
        module = getattr(model, "_module", model)  # nnsight's model wraps the torch module
        for mixer in found:
            columns = module.get_submodule(mixer.path).in_features
            if mixer.heads * mixer.width != columns:
                raise ValueError(
                    f"the table says {mixer.heads} × {mixer.width} columns at {mixer.path}, "
                    f"the model has {columns}; correct the row of {config.model_type!r}"
                )
    return found


def _value(config: PreTrainedConfig, product: str) -> int:
    """What a row's ``heads`` or ``width`` comes to: the product of the config's fields and numbers in it."""
    return math.prod(_factor(config, each) for each in product.split(" * "))


def _factor(config: PreTrainedConfig, name: str) -> int:
    if name == "head_dim" and getattr(config, "head_dim", None) is None:
        return config.hidden_size // config.num_attention_heads
    return int(name) if name.isdigit() else getattr(config, name)


def heads_of(model: TransformersModel | PreTrainedModel | PreTrainedConfig) -> HeadSet:
    """Every mixing head of the model; a config is enough."""
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
