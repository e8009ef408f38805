"""Llamba (Bick et al., 2025): Llama with Discrete Mamba-2 mixers in place of attention.

transformers has no such architecture. Importing this module adds it to ``AutoConfig`` and
``AutoModelForCausalLM`` under the name "llamba"; published checkpoints load as they are.
"""

from __future__ import annotations

import math
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.cache_utils import Cache
from transformers.masking_utils import create_recurrent_attention_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .discrete_mamba2 import DiscreteMamba2

SSM = ("d_state", "n_v_heads", "n_qk_heads", "expand", "chunk_size", "d_conv", "activation", "bias", "conv_bias")
MLP = {"intermediate_size": "intermediate_size", "bias": "mlp_bias", "act_fn": "hidden_act"}


@strict
class LlambaConfig(PreTrainedConfig):
    """Sizes of a Llamba; the defaults are Llamba-8B's.

    A published config.json says ``d_model``, ``n_layer``, ``norm_epsilon`` and ``tie_embeddings`` and
    puts the mixer's and the MLP's settings in ``ssm_cfg`` and ``mlp_cfg``: all are read. Mamba-2's names
    ``state_size``, ``num_heads``, ``n_groups`` and ``conv_kernel`` work too.

    >>> LlambaConfig(d_model=2048, n_layer=16, ssm_cfg={"n_v_heads": 32, "d_state": 64}).head_dim
    64

    Raises:
        ValueError: ``head_dim`` is given and is not ``expand × hidden_size / n_v_heads``.
    """

    model_type = "llamba"
    attribute_map = {  # noqa: RUF012 - as transformers declares it
        "d_model": "hidden_size",
        "n_layer": "num_hidden_layers",
        "norm_epsilon": "rms_norm_eps",
        "tie_embeddings": "tie_word_embeddings",
        "state_size": "d_state",
        "num_heads": "n_v_heads",
        "n_groups": "n_qk_heads",
        "conv_kernel": "d_conv",
    }

    vocab_size: int = 128256
    pad_vocab_size_multiple: int = 1
    hidden_size: int = 4096
    num_hidden_layers: int = 32
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    lm_head_bias: bool = False
    # the mixer
    d_state: int = 64
    n_v_heads: int = 32
    n_qk_heads: int = 32
    head_dim: int | None = None
    expand: int = 1
    chunk_size: int = 128
    d_conv: int = 4
    activation: str = "identity"
    bias: bool = False
    conv_bias: bool = True
    # the MLP
    intermediate_size: int = 14336
    hidden_act: str = "silu"
    mlp_bias: bool = False

    initializer_range: float = 0.02
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, ssm_cfg: dict[str, Any] | None = None, mlp_cfg: dict[str, Any] | None = None, **others):
        mlp = {MLP.get(name, name): value for name, value in (mlp_cfg or {}).items()}
        super().__post_init__(**others, **(ssm_cfg or {}), **mlp)
        self.vocab_size += -self.vocab_size % self.pad_vocab_size_multiple
        if self.head_dim is None:
            self.head_dim = self.expand * self.hidden_size // self.n_v_heads

    def validate_architecture(self) -> None:
        if self.head_dim * self.n_v_heads != self.expand * self.hidden_size:
            raise ValueError(
                f"n_v_heads={self.n_v_heads} × head_dim={self.head_dim} is not "
                f"expand × hidden_size = {self.expand * self.hidden_size}"
            )

    @property
    def layer_types(self) -> list[str]:
        """What each layer keeps during generation; transformers makes the cache from it."""
        return ["linear_attention"] * self.num_hidden_layers


class LlambaBlock(GradientCheckpointingLayer):
    """One layer: x + mixer(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: LlambaConfig, layer_idx: int) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mixer = DiscreteMamba2(config.hidden_size, layer_idx, **{name: getattr(config, name) for name in SSM})
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(self, hidden: Tensor, cache: Cache | None = None, attention_mask: Tensor | None = None) -> Tensor:
        hidden = hidden + self.mixer(self.input_layernorm(hidden), cache, attention_mask)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class LlambaPreTrainedModel(PreTrainedModel):
    """What transformers needs to know of the architecture."""

    config_class = LlambaConfig
    base_model_prefix = "backbone"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LlambaBlock"]  # noqa: RUF012
    _is_stateful = True  # a state cannot be rolled back
    _can_record_outputs = {"hidden_states": LlambaBlock}  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, DiscreteMamba2):
            initialization.ones_(module.D)
            if module.z_bias is not None:
                initialization.zeros_(module.z_bias)
            # torch's own: the convolution's inputs are few, and `initializer_range` is made for many
            initialization.kaiming_uniform_(module.conv1d.weight, a=math.sqrt(5))


class LlambaModel(LlambaPreTrainedModel):
    """The layers between the embedding and the last norm."""

    def __init__(self, config: LlambaConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([LlambaBlock(config, i) for i in range(config.num_hidden_layers)])
        self.final_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embedding = value

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **unused: Any,
    ) -> BaseModelOutputWithPast:
        """Arguments as in every transformers model; padding is exact on either side."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("exactly one of input_ids and inputs_embeds is needed")
        hidden = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        mask = create_recurrent_attention_mask(self.config, hidden, attention_mask, cache)
        for layer in self.layers:
            hidden = layer(hidden, cache=cache, attention_mask=mask)
        return BaseModelOutputWithPast(last_hidden_state=self.final_layernorm(hidden), cache=cache)


class LlambaForCausalLM(LlambaPreTrainedModel, GenerationMixin):
    """Llamba with the projection to the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "backbone.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: LlambaConfig) -> None:
        super().__init__(config)
        self.backbone = LlambaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Arguments as in every transformers model; ``labels`` are shifted inside."""
        outputs = self.backbone(
            input_ids, attention_mask, cache=cache, inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs
        )
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, cache=outputs.cache, hidden_states=outputs.hidden_states
        )


AutoConfig.register("llamba", LlambaConfig, exist_ok=True)
AutoModel.register(LlambaConfig, LlambaModel, exist_ok=True)
AutoModelForCausalLM.register(LlambaConfig, LlambaForCausalLM, exist_ok=True)
