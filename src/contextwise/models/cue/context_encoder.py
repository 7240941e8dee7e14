"""The context encoder: maps the set of a sentence's context vectors to one vector e_cue (CUE, Section 3.1).

Shapes: B sentences, K contexts of a set, C channels of the frozen text encoder, W channels of e_cue.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from contextwise.base.errors import ConfigError
from contextwise.models.cue.config import CueContextConfig


class CueContextEncoder(PreTrainedModel):
    """One projection for all contexts, Transformer blocks over the set without positions, and the mean.

    ::

        g_k = project(c_k)             # Eq. 2; linear according to Section 4.2.3 and Table 1's 6.6M parameters
        e_1 .. e_K = blocks(g_1 .. g_K)    # Eq. 3
        e_cue = mean(e_1 .. e_K)       # Eq. 4

    The result does not depend on the order of the contexts. A sentence without contexts gets the learned vector ``empty``.
    """

    config: CueContextConfig
    config_class = CueContextConfig
    base_model_prefix = ""
    main_input_name = "contexts"
    _no_split_modules = ["TransformerEncoderLayer"]  # noqa: RUF012
    blocks: Any

    def __init__(self, config: CueContextConfig) -> None:
        super().__init__(config)
        self.project = nn.Linear(config.text_width, config.width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                config.width, config.heads, config.feed_forward, dropout=0.0, batch_first=True
            )
            for _ in range(config.layers)
        )
        self.empty = nn.Parameter(torch.zeros(config.width))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if module is self:
            init.zeros_(self.empty)
        else:
            super()._init_weights(module)

    def forward(
        self, contexts: torch.Tensor, context_mask: torch.Tensor | None = None, **_: Any
    ) -> torch.Tensor:
        """e_cue of each sentence, (B, W).

        Args:
            contexts: (B, K, C) vectors of the frozen text encoder; the values of missing contexts are ignored.
            context_mask: (B, K) booleans, True for contexts and False for missing ones; by default all True.

        Raises:
            ConfigError: the vectors do not have the configured width, or the shape of the mask does not match.
        """
        mask_BK = self._mask(contexts, context_mask)
        if self.training and self.config.context_dropout:
            kept_BK = torch.rand(mask_BK.shape, device=mask_BK.device) >= self.config.context_dropout
            mask_BK = mask_BK & kept_BK
        if not mask_BK.shape[1]:
            return self.empty.expand(len(contexts), -1)
        e_BKW, attended_BK = self._projected(contexts, mask_BK)
        for block in self.blocks:
            e_BKW = block(e_BKW, src_key_padding_mask=~attended_BK)
        count_B1 = mask_BK.sum(1, keepdim=True)
        mean_BW = e_BKW.masked_fill(~mask_BK[..., None], 0.0).sum(1) / count_B1.clamp(min=1)
        # Both branches are always computed: under DDP every trained parameter needs a gradient in every step.
        return torch.where(count_B1 > 0, mean_BW, self.empty.to(mean_BW.dtype))

    @torch.no_grad()
    def attention(self, contexts: torch.Tensor, context_mask: torch.Tensor | None = None) -> torch.Tensor:
        """The attention that each context receives, (B, K), as in Figure 3.

        The mean over blocks, heads and attending contexts; the weights of a sentence sum to 1, those of missing contexts
        are 0. Without blocks all contexts have equal weight.
        """
        mask_BK = self._mask(contexts, context_mask)
        if not mask_BK.shape[1]:
            return contexts.new_zeros(mask_BK.shape)
        x_BKW, attended_BK = self._projected(contexts, mask_BK)
        received_BK = mask_BK.to(x_BKW.dtype) if not self.blocks else torch.zeros_like(x_BKW[..., 0])
        for block in self.blocks:
            weights_BQK = block.self_attn(x_BKW, x_BKW, x_BKW, key_padding_mask=~attended_BK)[1]
            received_BK = received_BK + (weights_BQK * mask_BK[..., None]).sum(1)
            x_BKW = block(x_BKW, src_key_padding_mask=~attended_BK)
        received_BK = received_BK * mask_BK
        return received_BK / received_BK.sum(1, keepdim=True).clamp(min=torch.finfo(received_BK.dtype).tiny)

    def _mask(self, contexts: torch.Tensor, context_mask: torch.Tensor | None) -> torch.Tensor:
        if contexts.dim() != 3 or contexts.shape[-1] != self.config.text_width:
            raise ConfigError(
                f"contexts have the shape {tuple(contexts.shape)}, but this context encoder expects (sentences, contexts, "
                f"{self.config.text_width}): vectors of {self.config.text_encoder.get('name', 'its text encoder')}"
            )
        if context_mask is None:
            return torch.ones(contexts.shape[:2], dtype=torch.bool, device=contexts.device)
        if context_mask.shape != contexts.shape[:2]:
            raise ConfigError(
                f"context_mask has the shape {tuple(context_mask.shape)}, but the contexts {tuple(contexts.shape[:2])}"
            )
        return context_mask.bool()

    def _projected(self, contexts: torch.Tensor, mask_BK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """g_1 .. g_K, and a mask of those attended to; in an empty set the first, so that no softmax is empty."""
        known = contexts.to(self.project.weight.dtype).masked_fill(~mask_BK[..., None], 0.0)
        attended_BK = mask_BK.clone()
        attended_BK[:, 0] |= ~mask_BK.any(1)
        return self.project(known), attended_BK
