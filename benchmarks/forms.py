"""Forms of ContextLM's prediction, as variants of a trial: supervised, several chunks ahead, and from chunks that overlap.

All have the gate before every layer. ``contextwise trial benchmarks/forms.yaml`` sets them beside GPT-2 (docs/quality.md). They
are made for training and scoring: of the overlapping form, the cache of generation knows nothing.
"""

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from contextwise.models import ContextLMForCausalLM

CHUNK = 4
CONTEXTLM = {"chunk_size": CHUNK, "predictor_layers": 2, "inject_every_layer": True}


class Supervised(ContextLMForCausalLM):
    """Predicted contexts are also trained to have the direction of the chunk vectors that they predict (stopped gradient)."""

    weight = 0.1
    ahead: nn.ModuleList

    def training_losses(self, hidden: Tensor, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        pathway: Any = self.context
        predicted, true = pathway.last
        losses = {"context": self.weight * distance(predicted[:, :-1], true[:, 1:])}
        for i, head in enumerate(self.ahead, start=2):
            losses[f"context{i}"] = self.weight * distance(head(predicted[:, :-i]), true[:, i:])
        return losses


def distance(predicted: Tensor, true: Tensor) -> Tensor:
    """1 minus the mean cosine."""
    return 1 - functional.cosine_similarity(predicted.float(), true.detach().float(), dim=-1).mean()


def supervised(model: Any, weight: float = 0.1, ahead: int = 1) -> Supervised:
    """The next ``ahead`` chunks are predicted, those beyond the next one by a matrix each, in training only."""
    new = Supervised.from_backbone(model, **CONTEXTLM)
    assert isinstance(new, Supervised)
    new.weight = weight
    width = new.config.backbone_config.hidden_size
    new.ahead = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(ahead - 1))
    pathway: Any = new.context
    predict = pathway.predict

    def kept(c: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out = predict(c, *args, **kwargs)
        pathway.last = out, c
        return out

    pathway.predict = kept
    return new


def overlapping(model: Any, stride: int = 2) -> ContextLMForCausalLM:
    """Chunks of w tokens begin every ``stride`` tokens: a context is at most that many tokens old."""
    new = ContextLMForCausalLM.from_backbone(model, **CONTEXTLM)

    def contexts(self: Any, h: Tensor, backbone: Any, **kwargs: Any) -> Tensor:
        length, w, first = h.shape[1], self.chunk_size, h[:, :1]
        if length < w:
            return first.expand(-1, length, -1)
        c = self.pooling(h.unfold(1, w, stride).transpose(-1, -2))
        positions = torch.arange(0, c.shape[1] * stride, stride, device=h.device)[None]
        predicted = self.predict(c, backbone, positions, None, None, **kwargs)
        # Position t reads entry t + 1: the context that was predicted last.
        entries = torch.cat([first.expand(-1, w, -1), predicted.repeat_interleave(stride, dim=1)], dim=1)
        return entries[:, 1 : length + 1]

    pathway: Any = new.context
    pathway.contexts = types.MethodType(contexts, pathway)
    return new
