"""Maximal update parametrization (µP): initial values and learning rates under which one rate suits every width.

Under the standard parametrization the best learning rate falls as a model becomes wider. µP (Yang et al. 2022, "Tensor
Programs V", arXiv:2203.03466, Table 8) scales three things with the width relative to a base width, so that each activation
and each change of it stays as large as in the base model. Models stay stock classes with stock arithmetic:

====================================  ================  ===================  ==================================
tensor                                initial values    AdamW's rate         why
====================================  ================  ===================  ==================================
matrices of the blocks, routers       × m^-1/2          × 1/m                m = fan-in / fan-in of the base
embeddings, norms, biases, gates      as they are       as they are          one entry per channel
vocabulary heads, tied or not         as they are       as they are          what they read is scaled instead
the norm before the heads             × 1/m             × 1/m                the output multiplier, folded in
====================================  ================  ===================  ==================================

The initial values are relative to those of the base width. Heads keep their width, so attention scores need no other scale.
All gradients but that of the norm before the heads are proportional to 1/m, so AdamW's ε is too (Dey et al. 2025,
arXiv:2505.01618, Table 1): gradients that pass a gate which starts at zero can be as small as ε.

Where ContextLM's injection shares that norm, the factor is the untied vocabulary head's instead.

Muon's updates have a size of their own: with torch's adjustment ``original`` their spectral norm does not depend on the width,
so a matrix that Muon trains keeps its rate; with ``match_rms_adamw`` it grows with the root of the longer side, so the rate is
divided by it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from contextwise.base.errors import ConfigError, Problem
from contextwise.models.contextlm.layers import SharedNorm
from contextwise.models.contextlm.pathway import ContextPathway
from contextwise.models.families import Family, adapter
from contextwise.models.matrices import linear_weight, matrices_of
from contextwise.models.spec import meta_model
from contextwise.training.recipe import Recipe

INPUT_DIMENSION: dict[type[nn.Module], int] = {Conv1D: 0, nn.Linear: 1, nn.Conv1d: 1, nn.Conv2d: 1}
"""The dimension of a layer's weight over which inputs are summed, by class, subclasses included."""
DRAWN: tuple[type[nn.Module], ...] = (nn.Embedding, *INPUT_DIMENSION)
"""Layers whose weights are drawn with the standard deviation of the configuration's ``initializer_range``."""


@dataclass(frozen=True)
class Scale:
    """Factors of one parameter, relative to the standard parametrization."""

    initial: float = 1.0  # of its initial values
    adamw: float = 1.0  # of its learning rates
    muon: float = 1.0
    epsilon: float = 1.0  # of AdamW's ε


def parameter_scales(recipe: Recipe, config: PreTrainedConfig) -> dict[str, Scale]:
    """Factors of initial values and learning rates of the model of a recipe with this configuration, by parameter."""
    settings, model = recipe.training, recipe.model
    if settings.parametrization == "standard" or model.at_width is None:
        return {}
    whole = meta_model(config)
    vocabulary = whole.get_input_embeddings().num_embeddings
    base = model.at_width(settings.mup_base_width).config(recipe, vocabulary, None)
    return mup_scales(whole, meta_model(base), settings.muon_adjustment)


def mup_scales(model: nn.Module, base: nn.Module, muon_adjustment: str = "original") -> dict[str, Scale]:
    """The factors of a model's parameters under µP, given the same model at the base width, where all are 1.

    Both may be on the meta device. A ConfigError if no norm or untied head can take the output multiplier, or with experts.
    """
    shapes = {name: parameter.shape for name, parameter in base.named_parameters()}
    inputs = {f"{name}.weight": _input_dimension(layer) for name, layer in model.named_modules()}
    drawn = {f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, DRAWN)}
    heads = vocabulary_heads(model)
    norms = {  # what has the factor of the logits
        f"{prefix}{family.norm_name}.{name}": parameter
        for prefix, backbone, family in backbones(model)
        for name, parameter in getattr(backbone, family.norm_name).named_parameters()
    }
    why = "" if norms else "but this model has no stock backbone, whose last norm would take the factor of the logits"
    if any(weight.dim() > 2 for weight in matrices_of(model)):
        why = (
            "but a parameter of this model stacks several matrices, such as those of experts: there is no factor for it"
        )
    if why:
        raise ConfigError(Problem(why, "training.parametrization", "mup", "set it to standard"))
    width = max(parameter.shape[0] / shapes[name][0] for name, parameter in norms.items())
    if any(isinstance(part, SharedNorm) for part in model.modules()):
        embedding = model.get_input_embeddings().weight  # type: ignore[operator]
        norms = {name: each for name, each in model.named_parameters() if id(each) in heads and each is not embedding}
        if not norms:
            why = "but the injection shared_norm merges contexts with the norm that takes the factor of the logits"
            fix = "set model.tie_embeddings to false, or the injection to own_norms"
            raise ConfigError(Problem(why, "training.parametrization", "mup", fix))
    narrowed = _initial_range(base) / _initial_range(model)  # a family whose initial values fall with the width already
    scales = {}
    for name, parameter in model.named_parameters():
        growth = [mine / theirs for mine, theirs in zip(parameter.shape, shapes[name], strict=True)]
        fan_in = inputs.get(name)
        if fan_in is None and sum(factor != 1 for factor in growth) > 1:
            fan_in = parameter.dim() - 1  # a matrix that is no layer
        if name in norms:
            scales[name] = Scale(initial=1 / width, adamw=1 / width)
        elif fan_in is None or (id(parameter) in heads and growth[0] == 1):  # a vocabulary does not grow with the width
            scales[name] = Scale(epsilon=1 / width)
        else:
            wide = growth[fan_in]
            longer = max(parameter.shape[-2:]) / max(shapes[name][-2:]) if muon_adjustment == "match_rms_adamw" else 1
            scales[name] = Scale(initial=wide**-0.5, adamw=1 / wide, muon=longer**-0.5, epsilon=1 / width)
        if name in drawn:
            scales[name] = replace(scales[name], initial=scales[name].initial * narrowed)
    return scales


@torch.no_grad()
def scale_initial_values(model: nn.Module, scales: dict[str, Scale]) -> None:
    """Multiply the initial values of a model by their factors, in place."""
    for name, parameter in model.named_parameters():
        if name in scales:
            parameter.mul_(scales[name].initial)


def vocabulary_heads(model: nn.Module) -> set[int]:
    """The ids of the weights of vocabulary heads, those of further tokens and tied ones among them.

    They are told by their shape. A matrix of a block can have the same: its inner layer, where it is as wide as the vocabulary.
    """
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    shapes = {head.weight.shape for part in parts if (head := part.get_output_embeddings()) is not None}
    blocks = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer | ContextPathway)]
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    layers = [part for part in model.modules() if isinstance(part, nn.Linear | nn.Embedding)]
    return {id(layer.weight) for layer in layers if layer.weight.shape in shapes} - inside


def _input_dimension(layer: nn.Module) -> int | None:
    routing = None if linear_weight(layer) is None else 1
    return next((dimension for kind, dimension in INPUT_DIMENSION.items() if isinstance(layer, kind)), routing)


def backbones(model: nn.Module) -> Iterator[tuple[str, PreTrainedModel, Family]]:
    """The stock base models inside a model, each with the prefix of its parameters' names and its family."""
    for name, part in model.named_modules():
        family = adapter(part.config) if isinstance(part, PreTrainedModel) else None
        if family is not None and hasattr(part, family.norm_name):
            yield f"{name}." if name else "", part, family


def _initial_range(model: nn.Module) -> float:
    return next(backbone.config.initializer_range for _, backbone, _ in backbones(model))
