"""One small adapter for each family of backbones: how to walk through a stock transformers model layer by layer.

ContextLM needs four things of a backbone: its token embedding, its blocks one at a time, its final norm, and fresh blocks
of the same kind for the context predictor. A new family is one more class here (see ``docs/models.md``).

Shapes: B rows, T positions, D channels; ``h_BTD`` is a hidden state.
"""

from typing import Any, Protocol

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXLayer

from contextwise.base.errors import ConfigError

Rotary = tuple[torch.Tensor, torch.Tensor]


class Family(Protocol):
    """What ContextLM asks of a family of backbones."""

    block_class: type[nn.Module]
    embedding_name: str
    """Name of the token embedding inside the backbone, for weight tying."""

    def blocks(self, backbone: Any) -> nn.ModuleList:
        """The backbone's blocks, in order."""

    def embed(
        self, backbone: Any, inputs_embeds_BTD: torch.Tensor, positions_BT: torch.Tensor
    ) -> torch.Tensor:
        """From token vectors to what the first block reads (adds learned positions, applies dropout)."""

    def rotary(self, backbone: Any, h_BTD: torch.Tensor, positions_BT: torch.Tensor) -> Rotary | None:
        """Rotary cosines and sines at the given positions, or None where positions are learned."""

    def run(
        self,
        block: nn.Module,
        h_BTD: torch.Tensor,
        mask: Any,
        rotary: Rotary | None,
        cache: Cache | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """One block."""

    def norm(self, backbone: Any, h_BTD: torch.Tensor) -> torch.Tensor:
        """The final norm."""


class GPT2Family:
    """GPT-2: learned absolute positions. Chunk vectors get none of their own; the mean of ``h`` carries them."""

    block_class = GPT2Block
    embedding_name = "wte"

    def blocks(self, backbone: Any) -> nn.ModuleList:
        return backbone.h

    def embed(
        self, backbone: Any, inputs_embeds_BTD: torch.Tensor, positions_BT: torch.Tensor
    ) -> torch.Tensor:
        return backbone.drop(inputs_embeds_BTD + backbone.wpe(positions_BT))

    def rotary(self, backbone: Any, h_BTD: torch.Tensor, positions_BT: torch.Tensor) -> Rotary | None:
        return None

    def run(
        self,
        block: nn.Module,
        h_BTD: torch.Tensor,
        mask: Any,
        rotary: Rotary | None,
        cache: Cache | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        return block(h_BTD, cache, mask, use_cache=cache is not None, **kwargs)

    def norm(self, backbone: Any, h_BTD: torch.Tensor) -> torch.Tensor:
        return backbone.ln_f(h_BTD)


class GPTNeoXFamily:
    """GPT-NeoX (Pythia): rotary positions."""

    block_class = GPTNeoXLayer
    embedding_name = "embed_in"

    def blocks(self, backbone: Any) -> nn.ModuleList:
        return backbone.layers

    def embed(
        self, backbone: Any, inputs_embeds_BTD: torch.Tensor, positions_BT: torch.Tensor
    ) -> torch.Tensor:
        return backbone.emb_dropout(inputs_embeds_BTD)

    def rotary(self, backbone: Any, h_BTD: torch.Tensor, positions_BT: torch.Tensor) -> Rotary | None:
        return backbone.rotary_emb(h_BTD, position_ids=positions_BT)

    def run(
        self,
        block: nn.Module,
        h_BTD: torch.Tensor,
        mask: Any,
        rotary: Rotary | None,
        cache: Cache | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        return block(
            h_BTD,
            attention_mask=mask,
            position_embeddings=rotary,
            layer_past=cache,
            use_cache=cache is not None,
            **kwargs,
        )

    def norm(self, backbone: Any, h_BTD: torch.Tensor) -> torch.Tensor:
        return backbone.final_layer_norm(h_BTD)


FAMILIES: dict[str, Family] = {"gpt2": GPT2Family(), "gpt_neox": GPTNeoXFamily()}


def family_of(config: PreTrainedConfig) -> Family:
    """The adapter for a backbone's configuration.

    Raises:
        ConfigError: there is none for this ``model_type``.
    """
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise ConfigError(
            f"ContextLM has no adapter for backbones of type {config.model_type!r}; it has {', '.join(sorted(FAMILIES))}"
        )
    return family
