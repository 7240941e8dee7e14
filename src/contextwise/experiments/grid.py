"""Grids: settings of a recipe, alone or together, and the values that they take."""

import itertools
from typing import Any

from contextwise.base.errors import ConfigError


def axis_settings(name: str) -> list[str]:
    """The settings of an axis: one, or several that change together (``model.size, training.tokens``)."""
    return [part.strip() for part in str(name).split(",")]


def axis_points(name: str, values: list[Any]) -> list[dict[str, Any]]:
    """Setting -> value at each point of an axis.

    Raises:
        ConfigError: no value, one twice, or a point that does not give each setting its value.
    """
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
    """Setting -> value at each point of a grid; one empty point where there is no grid.

    Raises:
        ConfigError: as :func:`axis_points`.
    """
    axes = [axis_points(name, values) for name, values in grid.items()]
    return [
        {setting: value for part in parts for setting, value in part.items()}
        for parts in itertools.product(*axes)
    ]


def set_value(data: dict[str, Any], setting: str, value: Any) -> None:
    """Set ``section.key`` of nested dictionaries."""
    *sections, last = setting.split(".")
    for section in sections:
        if data.get(section) is None:
            data[section] = {}
        data = data[section]
    data[last] = value
