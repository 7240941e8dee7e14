"""The axes of a grid: settings of a recipe, alone or together, and the values that they take."""

import difflib
from typing import Any

from contextwise.base.errors import ConfigError

CONTEXT = "data.context"
SIZE = ("model.size", "model.layers", "model.width", "model.heads")
LENGTHS = ("training.tokens", "training.steps")
AXES = (*SIZE, CONTEXT, *LENGTHS, "seed")
"""Settings that may be axes. Size, context, length and seed are what tells the points of a sweep apart; all else is the same
for every run."""
NEVER = {
    "training.learning_rate": "the rule of learning_rate sets it",
    "training.tokens_per_step": "it is the same for every context",
    "data.corpus": "the runs of a sweep share one corpus",
}


def parse_axis(name: str) -> list[str]:
    """The settings of an axis: one, or several that change together (``model.size, training.tokens``).

    Raises:
        ConfigError: one of them cannot be an axis.
    """
    settings = [part.strip() for part in str(name).split(",")]
    for setting in settings:
        if setting in NEVER:
            raise ConfigError(f"{setting} cannot be an axis: {NEVER[setting]}; leave it out of grid")
        if setting not in AXES:
            near = difflib.get_close_matches(setting, AXES, n=1, cutoff=0.5) or [
                axis for axis in AXES if axis.split(".")[-1] == setting.split(".")[-1]
            ]
            hint = f"did you mean {near[0]!r}?" if near else f"the axes are {', '.join(AXES)}"
            raise ConfigError(f"{setting!r} cannot be an axis; {hint}")
    return settings


def points_of_axis(name: str, values: list[Any]) -> list[dict[str, Any]]:
    """What the settings of an axis are at each of its points.

    Raises:
        ConfigError: no value, one twice, or a point that does not give each setting its value.
    """
    settings = parse_axis(name)
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


def place(data: dict[str, Any], setting: str, value: Any) -> None:
    """Put a value at a dotted place of nested dictionaries."""
    *sections, last = setting.split(".")
    for section in sections:
        if data.get(section) is None:
            data[section] = {}
        data = data[section]
    data[last] = value
