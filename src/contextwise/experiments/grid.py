"""Grids of settings, and the names of their runs."""

import itertools
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from contextwise.base.errors import ConfigError
from contextwise.base.hashes import content_key
from contextwise.base.runs import comparable
from contextwise.training.recipe import Recipe

GRID = (
    "settings of the recipe and the values that they take; settings that change together: "
    "'model.size, training.tokens': [[pico, 1000000], [nano, 2000000]]"
)
"""Help text of a grid."""


def axis_settings(name: str) -> list[str]:
    """The settings of an axis: one, or several that change together (``model.size, training.tokens``)."""
    return [part.strip() for part in str(name).split(",")]


def axis_points(name: str, values: list[Any]) -> list[dict[str, Any]]:
    """Setting -> value at each point of an axis."""
    settings = axis_settings(name)
    if not values:
        raise ConfigError(f"{name} has no values; give one at least, or leave the axis out")
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise ConfigError(f"{name} has {twice[0]!r} twice")
    if len(settings) == 1:
        return [{settings[0]: value} for value in values]
    for value in values:
        if not isinstance(value, list) or len(value) != len(settings):
            raise ConfigError(
                f"{name} are {len(settings)} settings that change together, but {value!r} is no list of "
                f"{len(settings)} values"
            )
    return [dict(zip(settings, value, strict=True)) for value in values]


def grid_points(grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Setting -> value at each point of a grid; one empty point where there is no grid."""
    axes = [axis_points(name, values) for name, values in grid.items()]
    return [dict(itertools.chain(*(part.items() for part in parts))) for parts in itertools.product(*axes)]


def learning_rates(recipe: Recipe) -> dict[str, float]:
    """The learning rates of a recipe by name of the setting: AdamW's, and Muon's where that is the optimizer."""
    muon = {"muon_learning_rate": recipe.training.muon_learning_rate}
    return {"learning_rate": recipe.learning_rate} | (muon if recipe.training.optimizer == "muon" else {})


def rate_settings(recipe: Recipe, factor: float) -> list[str]:
    """Settings that multiply the learning rates of a recipe; none for a factor of 1."""
    rates = {} if factor == 1 else learning_rates(recipe)
    return [f"training.{name}={rate * factor!r}" for name, rate in rates.items()]


def size_name(model: dict[str, Any]) -> str:
    """Name of a recipe's model size, with the numbers that differ from it: ``nano`` or ``nano-layers6``.

    Of a model without a size: its family, or ``pretrained``.
    """
    changed = [f"{name}{model[name]}" for name in ("layers", "width", "heads") if model.get(name)]
    return "-".join([model.get("size") or model.get("family") or "pretrained", *changed])


def slug(name: str) -> str:
    """A name as part of a file's name; the same for all ways to write its characters in Unicode."""
    return re.sub(r"[^\w.=+]+", "-", unicodedata.normalize("NFC", name)).strip("-").lower()


def content_id(
    recipe: Recipe, parents: Mapping[str, str] | None = None, inputs: Mapping[str, str] | None = None
) -> str:
    """Eight hexadecimal digits: a hash of every setting that changes the result, and of what the run starts from.

    Settings at their defaults do not count, so that a run keeps its id when Contextwise learns new ones; paths do not count.
    ``parents``: setting -> id of the parent that it names.
    """
    chosen = comparable(recipe.model_dump(mode="json", exclude_defaults=True), "name", *(parents or {}))
    if parents:
        chosen["parents"] = dict(parents)
    if inputs:
        chosen["inputs"] = dict(inputs)
    return content_key(**chosen)[:8]
