"""The module that is trained: a language model whose forward pass is its loss."""

import torch
from torch import nn
from transformers import PreTrainedModel

from contextwise.models.losses import token_losses
from contextwise.models.pretraining import Losses, pretraining_losses


class TrainedModel(nn.Module):
    """Wraps a language model so that DDP, FSDP and torch.compile see the loss as part of the forward pass.

    The vocabulary head is then applied piece by piece inside the wrapped module, where sharded weights are whole.

    Attributes:
        last: losses of the last batch, part by part, detached.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.last: Losses | None = None
        self._no_split_modules = model._no_split_modules

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        targets: torch.Tensor | None = None,
        per_token: bool = False,
        **batch: torch.Tensor,
    ) -> torch.Tensor:
        """What is minimised: mean loss in nats of ``labels``, and of whatever else the objective asks for.

        Args:
            input_ids, labels, batch: an objective's examples, stacked (:mod:`contextwise.objectives.objective`).
            targets: tokens that count in the whole step, if this batch is a part of it.
            per_token: give the loss of each of a decoder's labels instead, (B, T) float32, without gradients.
        """
        if per_token:
            return token_losses(self.model, input_ids, labels)
        losses = pretraining_losses(self.model, {"input_ids": input_ids, "labels": labels, **batch})
        self.last = Losses(losses.names, losses.sums.detach(), losses.counts)
        return losses.minimised(targets)
