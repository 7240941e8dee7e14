"""Forms of ContextLM's prediction, as variants of a trial: supervised, chunks ahead or overlapping, other gates and widths.

``contextwise trial benchmarks/forms.yaml`` sets the first three, with the gate before every layer, beside GPT-2, and
``benchmarks/pathways.yaml`` the others, behind the first layer (docs/results/context-prediction.md). The overlapping form is
made for training and scoring of whole rows: it refuses packed documents, padding and a cache.
"""

import copy
import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from contextwise.base.errors import ConfigError
from contextwise.models import ContextLMForCausalLM
from contextwise.models.contextlm.layers import Gate, Norm
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
        kept, pathway.last = pathway.last, None
        names = ["context", *(f"context{i}" for i in range(2, 2 + len(self.ahead)))]
        if kept is None:  # rows shorter than a chunk
            return {name: hidden.new_zeros(()) for name in names}
        predicted, true, first = kept
        losses = {}
        weight: Tensor | float = self.weight
        if self.until:
            weight = self.weight * (1 - self.seen / self.until).clamp(min=0)
            self.seen += input_ids.numel()
        for i, (name, head) in enumerate(zip(names, [nn.Identity(), *self.ahead], strict=True), start=1):
            # Chunks of one document: packed rows have others beside them, and entries that are no chunk.
            pairs = first[:, i:] - first[:, :-i] == i * CHUNK
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
    predict, pathway.last = pathway.predict, None

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
    pathway.contexts_of_rows = refuse
    return new


class RatedGate(Gate):
    """The gate as ``rate`` times what is learned, so that Adam moves it ``rate`` times as fast, from ``start``."""

    def __init__(self, layers: int, width: int, rate: float, start: float) -> None:
        super().__init__(layers, width, nn.Identity)
        self.rate = rate
        nn.init.constant_(self.weight, start / rate)

    def forward(self, context: Tensor, layer: int, norm: Norm) -> Tensor:
        return context * (self.rate * self.weight[layer])


def pathway(model: Any, rate: float = 1.0, start: float = 0.0, narrow: int = 1) -> ContextLMForCausalLM:
    """Behind the first layer, with a gate of another learning rate or initial value, or a predictor of another width.

    Args:
        rate: factor of the gate's learning rate.
        start: initial value of the gate.
        narrow: the predictor has the backbone's width divided by this, between two matrices.
    """
    new = ContextLMForCausalLM.from_backbone(model, chunk_size=CHUNK, predictor_layers=2, injection_layer=1)
    pathway: Any = new.context
    config = copy.deepcopy(new.config.backbone_config)
    width, layers = config.hidden_size, config.num_hidden_layers
    pathway.gate = RatedGate(1, width, rate, start)
    if narrow > 1:
        config.update({"n_embd": width // narrow, "n_head": max(1, config.n_head // narrow)})
        pathway.layers = nn.ModuleList(pathway.family.new_block(config, layers + i) for i in range(len(pathway.layers)))
        pathway.down, pathway.up = nn.Linear(width, width // narrow), nn.Linear(width // narrow, width)
        for layer in (pathway.down, pathway.up, *pathway.layers.modules()):
            if isinstance(layer, (nn.Linear, Conv1D)):
                nn.init.normal_(layer.weight, std=config.initializer_range)
                nn.init.zeros_(layer.bias)
        predict = pathway.predict

        def through(c: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return pathway.up(predict(pathway.down(c), *args, **kwargs))

        pathway.predict = through
    return new
