"""The module that is trained: a causal language model whose forward pass is its loss."""

import torch
from torch import nn
from transformers import PreTrainedModel

from contextwise.models.losses import causal_loss
from contextwise.models.multitoken import MultiTokenForCausalLM


class TrainedModel(nn.Module):
    """Wraps a causal language model so that DDP, FSDP and torch.compile see the loss as part of the forward pass.

    The vocabulary head is then applied piece by piece inside the wrapped module, where sharded weights are whole.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.head_losses: torch.Tensor | None = None
        self._no_split_modules = model._no_split_modules

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, position_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Mean loss in nats of ``labels`` (B, T), already shifted, given ``input_ids`` (B, T).

        While a model of several tokens is trained, the sum over its heads; ``head_losses`` then has each head's mean, (n,).
        """
        inputs = {} if position_ids is None else {"position_ids": position_ids}
        if self.training and isinstance(self.model, MultiTokenForCausalLM):
            found = self.model.multi_token_loss(input_ids, labels, **inputs)
            self.head_losses = found.head_sums / found.head_targets.clamp(min=1)
            return found.total / labels.numel()
        return causal_loss(self.model, input_ids, labels, **inputs) / labels.numel()
