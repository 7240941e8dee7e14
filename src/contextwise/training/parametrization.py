"""Maximal update parametrization (µP): initial values and learning rates under which one rate suits every width.

Under the standard parametrization the best learning rate falls as a model becomes wider. µP (Yang et al. 2022, "Tensor
Programs V", arXiv:2203.03466, Table 8) scales three things with the width relative to a base width, so that each activation
and each change of it stays as large as in the base model. Models stay stock classes with stock arithmetic:

====================================  ================  ===================  ==================================
tensor                                initial values    AdamW's rate         why
====================================  ================  ===================  ==================================
matrices of the blocks                × m^-1/2          × 1/m                m = fan-in / fan-in of the base
embeddings, norms, biases, gates      as they are       as they are          one entry per channel
vocabulary heads, tied or not         as they are       as they are          what they read is scaled instead
the norm before the heads             × 1/m             × 1/m                the output multiplier, folded in
====================================  ================  ===================  ==================================

Heads keep their width, so attention scores need no other scale. Muon's updates have a size of their own, so a matrix that Muon
trains keeps its rate. With a base number of layers, the matrices that end a residual branch are scaled by base layers / layers
too, as in CompleteP with α = 1 (Dey et al. 2025, arXiv:2505.01618): initial values and rates, folded in like the output's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from contextwise.models.families import adapter

BRANCH_ENDS = ("c_proj", "o_proj", "down_proj", "dense", "dense_4h_to_h")
"""Names of the layers of a block whose output is added to the hidden state."""
SCALED_BY_DEPTH = ("gpt2",)
"""Model types whose initialization divides the matrices of ``BRANCH_ENDS`` by the root of the number of branches."""


@dataclass(frozen=True)
class Scale:
    """Factors of one parameter, relative to the standard parametrization: of its initial values and of its learning rates."""

    initial: float = 1.0
    adamw: float = 1.0
    muon: float = 1.0


def mup_scales(model: nn.Module, base: nn.Module, base_layers: int | None = None) -> dict[str, Scale]:
    """The factors of a model's parameters under µP; those that are not named are 1.

    Args:
        model, base: the model, and the same model at the base width; both may be on the meta device.
        base_layers: the base number of layers of the backbone, for CompleteP; None: depth changes nothing.
    """
    shapes = {name: parameter.shape for name, parameter in base.named_parameters()}
    inputs = {f"{name}.weight": _input_dimension(layer) for name, layer in model.named_modules()}
    heads = _head_shapes(model)
    scales = {}
    for name, parameter in model.named_parameters():
        growth = [mine / theirs for mine, theirs in zip(parameter.shape, shapes[name], strict=True)]
        fan_in = inputs.get(name)
        if fan_in is None and sum(factor != 1 for factor in growth) > 1:
            fan_in = parameter.dim() - 1  # a matrix, or a stack of them, that is no layer
        if fan_in is not None and parameter.shape not in heads and growth[fan_in] != 1:
            wide = growth[fan_in]
            scales[name] = Scale(initial=wide**-0.5, adamw=1 / wide)
    for name, parameter in _norms_before_heads(model):
        wide = parameter.shape[0] / shapes[name][0]
        scales[name] = Scale(initial=1 / wide, adamw=1 / wide)
    if base_layers is not None:
        for name, share, initial in _branch_ends(model, base_layers):
            old = scales.get(name, Scale())
            scales[name] = Scale(old.initial * initial, old.adamw * share, old.muon * share)
    return scales


@torch.no_grad()
def scale_initial_values(model: nn.Module, scales: dict[str, Scale]) -> None:
    """Multiply the initial values of a model by their factors, in place."""
    for name, parameter in model.named_parameters():
        if name in scales:
            parameter.mul_(scales[name].initial)


def _input_dimension(layer: nn.Module) -> int | None:
    """The dimension of a layer's weight over which inputs are summed."""
    return {Conv1D: 0, nn.Linear: 1}.get(type(layer))


def _head_shapes(model: nn.Module) -> set[torch.Size]:
    """The shapes of the vocabulary heads, those of further tokens and tied ones among them."""
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    return {head.weight.shape for part in parts if (head := part.get_output_embeddings()) is not None}


def backbones(model: nn.Module) -> Iterator[tuple[str, PreTrainedModel]]:
    """The stock base models inside a model, with their names."""
    for name, part in model.named_modules():
        family = adapter(part.config) if isinstance(part, PreTrainedModel) else None
        if family is not None and hasattr(part, family.norm_name):
            yield f"{name}." if name else "", part


def _norms_before_heads(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, backbone in backbones(model):
        norm = adapter(backbone.config).norm_name  # type: ignore[union-attr]
        for own, parameter in getattr(backbone, norm).named_parameters():
            yield f"{name}{norm}.{own}", parameter


def _branch_ends(model: nn.Module, base_layers: int) -> Iterator[tuple[str, float, float]]:
    """The parameters that end the residual branches of the backbone, with the factors of their rates and initial values."""
    for name, backbone in backbones(model):
        family = adapter(backbone.config)
        blocks = family.blocks(backbone)  # type: ignore[union-attr]
        share = base_layers / len(blocks)
        initial = math.sqrt(share) if backbone.config.model_type in SCALED_BY_DEPTH else share
        for own, _ in blocks.named_parameters():
            if own.split(".")[-2] in BRANCH_ENDS:
                yield f"{name}{family.blocks_name}.{own}", share, initial  # type: ignore[union-attr]
