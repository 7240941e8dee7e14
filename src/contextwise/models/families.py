"""Adapters of backbone families: run a stock transformers model layer by layer.

ContextLM needs four things of a backbone: its token embedding, its blocks one at a time, its final norm, and new blocks
of the same class for the context predictor. A new family is one more class (see ``docs/extend.md``).

Shapes: B rows, T positions, D channels; ``h_BTD`` is a hidden state.
"""

import copy
import math
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXLayer, GPTNeoXMLP
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from contextwise.base.errors import ConfigError
from contextwise.base.trust import trust
from contextwise.models.rope import follows_length, frozen_frequencies

Rotary = tuple[Tensor, Tensor]
RESIDUAL_STD: dict[str, Callable[[Any], float]] = {
    "gpt2": lambda config: config.initializer_range / math.sqrt(2 * config.num_hidden_layers),
    "wang": lambda config: 2 / (config.num_hidden_layers * math.sqrt(config.hidden_size)),
}
"""Standard deviation of a new block's residual projections, by the name in a GPT-NeoX configuration's ``residual_init``.

``gpt2``: 1/√(2L) of the other matrices (Radford et al. 2019, Section 2.3). ``wang``: 2/(L√D), ``wang_init`` of the gpt-neox
library, which trained GPT-NeoX-20B and Pythia. transformers' GPT-NeoX has one standard deviation for all matrices.
"""


CACHE = "cache" if "cache" in signature(create_causal_mask).parameters else "past_key_values"
"""transformers' name of a key-value cache among the arguments and outputs of models: ``cache`` from 5.24 on."""


class Family:
    """Base class of adapters; the defaults are those of a model with rotary positions."""

    block_class: type[nn.Module]
    # Names of the blocks, the token embedding and the final norm inside the backbone.
    blocks_name = "layers"
    embedding_name: str
    norm_name: str
    cache_argument = CACHE  # a block's argument for its key-value cache

    def check(self, config: PreTrainedConfig) -> None:
        """Raise ConfigError if the adapter cannot run a backbone of this configuration."""

    def new_block(self, config: Any, index: int) -> nn.Module:
        """Create a block of the backbone's class that uses cache layer ``index``, after the backbone's own layers."""
        return self.block_class(config, layer_idx=index)

    def blocks(self, backbone: Any) -> nn.ModuleList:
        """The backbone's blocks, in order."""
        return getattr(backbone, self.blocks_name)

    def embed(self, backbone: Any, embeds_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        """Map token vectors to the input of the first block (adds learned positions, applies dropout)."""
        return embeds_BTD

    def rotary(self, backbone: Any, h_BTD: Tensor, positions_BT: Tensor) -> Rotary | None:
        """Rotary cosines and sines at the given positions, or None for a backbone with learned positions."""
        return backbone.rotary_emb(h_BTD, position_ids=positions_BT)

    def rotary_of_chunks(self, backbone: Any, c_BKD: Tensor, first_BK: Tensor) -> Rotary | None:
        """Rotary cosines and sines of chunks, at the frequencies of this call's tokens.

        The last chunk's position is before the last token's, so length-dependent scaling would differ between them.
        """
        module = getattr(backbone, "rotary_emb", None)
        if module is None or not follows_length(module):
            return self.rotary(backbone, c_BKD, first_BK)
        with frozen_frequencies([module]):
            return self.rotary(backbone, c_BKD, first_BK)

    def run(
        self, block: nn.Module, h_BTD: Tensor, mask: Any, rotary: Rotary | None, cache: Cache | None, **kwargs: Any
    ) -> Tensor:
        """Run one block."""
        if rotary is not None:
            kwargs["position_embeddings"] = rotary
        kwargs[self.cache_argument] = cache
        return block(h_BTD, attention_mask=mask, use_cache=cache is not None, **kwargs)

    def run_blocks(
        self,
        backbone: Any,
        embeds_BTD: Tensor,
        positions_BT: Tensor | None,
        mask: Any = None,
        cache: Cache | None = None,
        before_block: Callable[[int, Tensor], Tensor] | None = None,
        layers: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Rotary | None]:
        """Run the blocks (``layers`` of them) on token vectors: the input of the final norm, and the rotary cosines and sines.

        ``before_block`` maps the index of a block and its input to a changed input.
        """
        if positions_BT is None:
            positions_BT = torch.arange(embeds_BTD.shape[1], device=embeds_BTD.device).expand(embeds_BTD.shape[:2])
        h_BTD = self.embed(backbone, embeds_BTD, positions_BT)
        rotary = self.rotary(backbone, h_BTD, positions_BT)
        for i, block in enumerate(self.blocks(backbone)[:layers]):
            if before_block is not None:
                h_BTD = before_block(i, h_BTD)
            h_BTD = self.run(block, h_BTD, mask, rotary, cache, **kwargs)
        return h_BTD, rotary

    def norm(self, backbone: Any, h_BTD: Tensor) -> Tensor:
        """Apply the final norm."""
        return getattr(backbone, self.norm_name)(h_BTD)

    def new_norm(self, backbone: Any) -> nn.Module:
        """Create a norm like the final norm of ``backbone``, whose weights are new."""
        return copy.deepcopy(getattr(backbone, self.norm_name))


class GPT2Family(Family):
    """GPT-2: learned absolute positions. Chunk vectors get no positions of their own; the mean of ``h`` contains them."""

    block_class = GPT2Block
    blocks_name, embedding_name, norm_name = "h", "wte", "ln_f"

    def embed(self, backbone: Any, embeds_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return backbone.drop(embeds_BTD + backbone.wpe(positions_BT))

    def rotary(self, backbone: Any, h_BTD: Tensor, positions_BT: Tensor) -> Rotary | None:
        return None


class GPTNeoXFamily(Family):
    """GPT-NeoX (Pythia): rotary positions on a part of each head; attention and feed-forward in parallel."""

    block_class = GPTNeoXLayer
    embedding_name, norm_name = "embed_in", "final_layer_norm"
    cache_argument = "layer_past"

    def embed(self, backbone: Any, embeds_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return backbone.emb_dropout(embeds_BTD)


class LlamaFamily(Family):
    """Llama and similar families: RMSNorm, grouped-query attention, rotary positions, gated feed-forward."""

    embedding_name, norm_name = "embed_tokens", "norm"

    def __init__(self, block_class: type[nn.Module]) -> None:
        self.block_class = block_class

    def check(self, config: Any) -> None:
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        # Mistral has no list of layer types: its window, if set, applies to every layer.
        all_sliding = not getattr(config, "layer_types", None) and getattr(config, "sliding_window", None)
        if kinds != {"full_attention"} or all_sliding:
            raise ConfigError(
                f"full attention is needed in every layer, but this {config.model_type} has sliding windows; "
                "set sliding_window to null (and use_sliding_window to false) in the backbone's configuration"
            )

    def new_block(self, config: Any, index: int) -> nn.Module:
        if not getattr(config, "layer_types", None):
            return super().new_block(config, index)
        # These blocks look up their attention type by index, in a list that covers only the backbone's own blocks.
        longer = copy.copy(config)
        longer.layer_types = ["full_attention"] * (index + 1)
        block: Any = super().new_block(longer, index)
        block.self_attn.config = config  # so that later changes of the attention implementation apply
        return block


FAMILIES: dict[str, Family] = {
    "gpt2": GPT2Family(),
    "gpt_neox": GPTNeoXFamily(),
    "llama": LlamaFamily(LlamaDecoderLayer),
    "mistral": LlamaFamily(MistralDecoderLayer),
    "qwen2": LlamaFamily(Qwen2DecoderLayer),
    "qwen3": LlamaFamily(Qwen3DecoderLayer),
}


def adapter(config: PreTrainedConfig) -> Family | None:
    """The adapter that can run a backbone of this configuration, if there is one."""
    try:
        return family_of(config)
    except ConfigError:
        return None


def family_of(config: PreTrainedConfig) -> Family:
    """The adapter of a backbone's configuration; ConfigError if there is none, or it cannot run a part of the backbone."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise ConfigError(
            f"there is no adapter for backbones of type {config.model_type!r}; choose one of {', '.join(sorted(FAMILIES))}"
        )
    family.check(config)
    return family


def initialize_module(owner: PreTrainedModel, module: nn.Module) -> None:
    """Initialize one module as ``owner`` initializes its own, with the residual projections of its ``residual_init``."""
    owner._init_weights(module)
    kind = getattr(owner.config, "residual_init", None)
    if kind is not None and isinstance(module, GPTNeoXAttention | GPTNeoXMLP):
        projection = module.dense if isinstance(module, GPTNeoXAttention) else module.dense_4h_to_h
        init.normal_(projection.weight, std=RESIDUAL_STD[kind](owner.config))


@torch.no_grad()
def new_stock_model(auto_class: Any, config: PreTrainedConfig, **options: Any) -> Any:
    """Build a stock transformers model of this configuration, with the residual projections of its ``residual_init``."""
    auto = getattr(auto_class, "from_config", None)
    if auto is not None:  # without the argument transformers asks on the terminal about code of the model's own
        model = auto(config, trust_remote_code=trust.remote_code, **options)
    else:
        model = auto_class._from_config(config, **options)
    if hasattr(config, "residual_init"):
        for module in model.modules():
            if isinstance(module, GPTNeoXAttention | GPTNeoXMLP):
                initialize_module(model, module)
    return model
