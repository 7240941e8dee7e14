"""Models that can be built, near a recommended number of parameters."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from contextwise.analysis.scaling.observations import Observations
from contextwise.analysis.sweep_points import size_name
from contextwise.base.errors import ContextwiseError
from contextwise.models.building import parameter_count
from contextwise.models.sizes import SIZES
from contextwise.training.model import sized_config
from contextwise.training.recipe import SizedModel

NEAR = 1.15
"""Where no named size is within this factor, its layers are counted anew."""


@dataclass(frozen=True)
class Shape:
    """A model: its name, and its parameters."""

    name: str
    parameters: int


def nearest_shapes(observed: Observations, parameters: float, context: int) -> list[Shape]:
    """The named size of the sweep's family that is nearest, and where that is not near, one with other layers.

    The vocabulary is inferred from the parameters of the sweep's sizes. Empty where the sweep's models have no named sizes.
    """
    recipe = observed.model.get(observed.sizes[-1])
    try:
        if recipe is None or recipe.get("pretrained"):
            return []
        settings = SizedModel.model_validate(recipe)
        vocabulary = _vocabulary(settings, observed)
        named = _named(settings, vocabulary, context, parameters)
        nearest = min(named, key=lambda shape: _distance(shape, parameters))
        shapes = [nearest]
        if _distance(nearest, parameters) > np.log(NEAR):
            shapes.append(_layered(settings, nearest, vocabulary, context, parameters))
    except (ContextwiseError, ValueError):  # a recipe of hand-made numbers
        return []
    return shapes


def _distance(shape: Shape, parameters: float) -> float:
    return abs(float(np.log(shape.parameters / parameters)))


def _count(settings: SizedModel, vocabulary: int, context: int) -> int:
    return parameter_count(sized_config(settings, vocabulary, context, None))


def _vocabulary(settings: SizedModel, observed: Observations) -> int:
    """The vocabulary with which the sweep's largest size has the parameters that were measured."""
    measured, context = float(observed.size_parameters[-1]), int(observed.context.min())
    small, large = (_count(settings, pieces, context) for pieces in (1000, 2000))
    vocabulary = round(1000 + (measured - small) / ((large - small) / 1000))
    if vocabulary < 2:
        raise ValueError("the parameters of the sweep are not those of its recipe")
    return vocabulary


def _with(settings: SizedModel, **changes: Any) -> SizedModel:
    """Another shape of the same kind."""
    return SizedModel.model_validate(
        settings.model_dump() | {"layers": None, "width": None, "heads": None} | changes
    )


def _named(settings: SizedModel, vocabulary: int, context: int, parameters: float) -> list[Shape]:
    """Named sizes up to the first that is far too large (counting it builds the model without memory, which takes time)."""
    shapes = []
    for name in SIZES[settings.family]:
        shapes.append(Shape(name, _count(_with(settings, size=name), vocabulary, context)))
        if shapes[-1].parameters > 4 * parameters:
            break
    return shapes


def _layered(settings: SizedModel, nearest: Shape, vocabulary: int, context: int, parameters: float) -> Shape:
    """The nearest named size with as many layers as come nearest to the parameters."""
    base = _with(settings, size=nearest.name).shape
    few, more = (
        _count(_with(settings, size=nearest.name, layers=layers), vocabulary, context)
        for layers in (base.layers, base.layers + 1)
    )
    layers = max(1, base.layers + round((parameters - few) / (more - few)))
    changed = _with(settings, size=nearest.name, layers=layers)
    return Shape(size_name(changed.model_dump()), _count(changed, vocabulary, context))
