"""Forms of ContextLM's prediction, as variants of a trial: supervised, several chunks ahead, and from chunks that overlap.

All have the gate before every layer. ``contextwise trial benchmarks/forms.yaml`` sets them beside GPT-2 (docs/quality.md). The
overlapping form is made for training and scoring of whole rows: it refuses packed documents, padding and a cache.
"""

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from contextwise.base.errors import ConfigError
from contextwise.models import ContextLMForCausalLM
from contextwise.models.masks import causal_mask

CHUNK = 4
CONTEXTLM = {"chunk_size": CHUNK, "predictor_layers": 2, "inject_every_layer": True}


class Supervised(ContextLMForCausalLM):
    """Predicted contexts are also trained to have the direction of the chunk vectors that they predict (stopped gradient)."""

    weight = 0.1
    until = 0
    seen: Tensor
    ahead: nn.ModuleList

    def training_losses(self, hidden: Tensor, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        pathway: Any = self.context
        predicted, true, first = pathway.last
        losses = {}
        weight: Tensor | float = self.weight
        if self.until:
            weight = self.weight * (1 - self.seen / self.until).clamp(min=0)
            self.seen += input_ids.numel()
        for i, head in enumerate([nn.Identity(), *self.ahead], start=1):
            # Chunks of one document: packed rows have others beside them, and entries that are no chunk.
            pairs = first[:, i:] - first[:, :-i] == i * CHUNK
            name = "context" if i == 1 else f"context{i}"
            losses[name] = weight * distance(head(predicted[:, :-i]), true[:, i:], pairs)
        return losses


def distance(predicted: Tensor, true: Tensor, pairs: Tensor) -> Tensor:
    """1 minus the mean cosine of the pairs; 0 if there are none."""
    apart = 1 - functional.cosine_similarity(predicted.float(), true.detach().float(), dim=-1)
    pairs = pairs.expand_as(apart)
    return (apart * pairs).sum() / pairs.sum().clamp(min=1)


def supervised(model: Any, weight: float = 0.1, ahead: int = 1, until: int = 0) -> Supervised:
    """The next ``ahead`` chunks are predicted, those beyond the next one by a matrix each, in training only.

    Args:
        until: tokens of training over which the weight falls to zero, in a straight line; 0: it stays.
    """
    new = Supervised.from_backbone(model, **CONTEXTLM)
    assert isinstance(new, Supervised)
    new.weight, new.until = weight, until
    if until:
        new.register_buffer("seen", torch.zeros((), dtype=torch.int64))
    width = new.config.backbone_config.hidden_size
    new.ahead = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(ahead - 1))
    pathway: Any = new.context
    predict = pathway.predict

    def kept(c: Tensor, backbone: Any, first: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out = predict(c, backbone, first, *args, **kwargs)
        pathway.last = out, c, first
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
        mask = causal_mask(backbone.config, c, None, None, None)
        predicted = self.predict(c, backbone, positions, mask, None, **kwargs)
        # Position t reads entry t + 1: the context that was predicted last.
        entries = torch.cat([first.expand(-1, w, -1), predicted.repeat_interleave(stride, dim=1)], dim=1)
        return entries[:, 1 : length + 1]

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ConfigError(
            "overlapping chunks know no packed documents, padding or cache; give whole rows, use_cache=False"
        )

    pathway: Any = new.context
    pathway.contexts = types.MethodType(contexts, pathway)
    pathway.contexts_of_rows = pathway.contexts_of_step = refuse
    return new
