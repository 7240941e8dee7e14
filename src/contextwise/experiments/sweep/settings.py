"""Settings of a sweep, and the training runs of its grid.

The experiment is that of context scaling (Section 3): model sizes × training contexts, the tokens of a step constant while the
context grows (so that documents per step fall), one corpus, and a constant learning rate after the warm-up, because every
point along a run represents a smaller run that ended there.
"""

import copy
import difflib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from contextwise.base.config import Settings, read_yaml, validate, with_overrides
from contextwise.base.errors import ConfigError
from contextwise.experiments.executors import ExecutorSettings
from contextwise.experiments.grid import axis_points, axis_settings, grid_points, set_value
from contextwise.experiments.naming import content_id, size_name
from contextwise.models.sizes import readable_count
from contextwise.training.recipe import Recipe, SizedModel

RESOLVED, PLAN = "sweep.yaml", "plan.json"
"""Files of a sweep's folder: its settings, and its runs."""
CONTEXT = "data.context"
SIZE = ("model.size", "model.layers", "model.width", "model.heads")
LENGTHS = ("training.tokens", "training.steps")
AXES = (*SIZE, CONTEXT, *LENGTHS, "seed")
"""Settings that may be axes: size, context, length and seed. Everything else is the same for all runs of a sweep."""
NEVER = {
    "training.learning_rate": "the rule of learning_rate sets it",
    "training.tokens_per_step": "it is the same for every context",
    "data.corpus": "the runs of a sweep share one corpus",
}

LearningRateRule = Literal["size", "fixed", "width"]


class SweepRecipe(Settings):
    """A grid of training runs."""

    name: str = Field(pattern=r"^[^/\\]+$")
    base: dict[str, Any] = Field(
        description="a recipe, or the path of a recipe file, relative to the sweep file"
    )
    grid: dict[str, list[Any]] = Field(
        description="settings of the recipe, and the values that they take; settings that change together: "
        "'model.size, training.tokens': [[pico, 1000000], [nano, 2000000]]"
    )
    learning_rate: LearningRateRule = Field(
        "size",
        description="size: each size's own rate, the same for every context; fixed: base's; width: base's, which holds "
        "for base's model, times base's width / width",
    )
    measurements: int = Field(16, ge=1, description="context curves along a run, evenly spaced")
    executor: ExecutorSettings = ExecutorSettings()
    output: str = Field("", description="the sweep's folder; sweeps/<name> if not given")

    @field_validator("base", mode="after")
    @classmethod
    def _sweepable(cls, base: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        problems = [
            f"{section} must be a mapping"
            for section in ("data", "model", "training")
            if not isinstance(base.get(section) or {}, dict)
        ]
        if problems:
            raise ConfigError("; ".join(problems))
        schedule = (base.get("training") or {}).get("schedule", "constant")
        if schedule != "constant":
            problems.append(
                f"training.schedule is {schedule!r}, but each point along a run represents a smaller run, whose learning "
                "rate would have ended there; set it to constant"
            )
        if (base.get("model") or {}).get("pretrained") is not None:
            problems.append(
                "model.pretrained is given, but a sweep trains each size from scratch; leave it out"
            )
        if problems:
            raise ConfigError("; ".join(problems))
        return base

    @field_validator("grid", mode="after")
    @classmethod
    def _axes(cls, grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
        problems, seen = ([] if grid else ["it is empty; give model.size and data.context values"]), set()
        for name, values in grid.items():
            try:
                settings = _checked_axis(name)
                axis_points(name, values)
            except ConfigError as error:
                problems.append(str(error))
                continue
            problems += [f"{setting} is in two axes" for setting in settings if setting in seen]
            seen |= set(settings)
        if not problems and set(LENGTHS) <= seen:
            problems.append(
                f"{' and '.join(LENGTHS)} are both axes; they set the same length, keep one of the two"
            )
        if problems:
            raise ConfigError("; ".join(problems))
        return grid

    @model_validator(mode="after")
    def _whole(self) -> "SweepRecipe":
        self.recipes()
        return self

    def resolved(self) -> dict[str, Any]:
        """Every setting, as plain values; relative paths made absolute."""
        data = self.model_dump(mode="json", exclude={"output"})
        if "corpus" in (data["base"].get("data") or {}):
            data["base"]["data"]["corpus"] = str(Path(data["base"]["data"]["corpus"]).absolute())
        return data

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        return Path(self.output or f"sweeps/{self.name}")

    def values(self, setting: str) -> list[Any]:
        """The values that a setting takes in the grid, in its order; none if it is no axis."""
        points = [point for name, values in self.grid.items() for point in axis_points(name, values)]
        return list(dict.fromkeys(point[setting] for point in points if setting in point))

    @property
    def longest(self) -> int | None:
        """The longest training context, at whose targets every run is measured."""
        given = (self.base.get("training") or {}).get("curve_longest")
        contexts = self.values(CONTEXT) or [(self.base.get("data") or {}).get("context", 256)]
        return given or max((c for c in contexts if isinstance(c, int)), default=None)

    def recipes(self) -> dict[str, Recipe]:
        """Every run's recipe by its id, in the order of the grid.

        Raises:
            ConfigError: runs that cannot be; all that is wrong, in one message.
        """
        self._check_step()
        recipes: dict[str, Recipe] = {}
        problems: dict[str, None] = {}
        for point in grid_points(self.grid):
            try:
                recipe = self._recipe(point)
            except ConfigError as error:
                problems[str(error).removeprefix("the run has a problem: ")] = None
                continue
            name = run_id(recipe)
            if name in recipes:
                where = ", ".join(f"{setting}={value}" for setting, value in point.items())
                problems[f"the grid has one run twice ({where})"] = None
            recipes[name] = recipe
        if problems:
            raise ConfigError("; ".join(problems))
        return recipes

    def _check_step(self) -> None:
        step = (self.base.get("training") or {}).get("tokens_per_step", 8192)
        if not isinstance(step, int) or step < 1:
            return  # the recipe reports it
        wrong = [c for c in self.values(CONTEXT) if isinstance(c, int) and c > 0 and step % c]
        if wrong:
            raise ConfigError(
                f"the context{'s' * (len(wrong) > 1)} {', '.join(map(str, wrong))} of grid.{CONTEXT} "
                f"{'do' if len(wrong) > 1 else 'does'} not divide base.training.tokens_per_step ({step}), which is the same "
                "for every context; choose contexts that divide it, powers of two for example"
            )

    def _recipe(self, point: dict[str, Any]) -> Recipe:
        """The recipe at one point of the grid."""
        data = copy.deepcopy(self.base)
        data.pop("output", None)
        training = data["training"] = data.get("training") or {}
        if set(LENGTHS) & point.keys():  # in place of base's, in whichever form that is
            for length in LENGTHS:
                training.pop(length.removeprefix("training."), None)
        for setting, value in point.items():
            set_value(data, setting, value)
        data["name"] = self.name
        training.setdefault("schedule", "constant")
        training.setdefault("curve_longest", self.longest)
        given_rate = training.pop("learning_rate", None)
        recipe = validate(Recipe, data, "the run")
        values = {
            "learning_rate": self._learning_rate(recipe, given_rate),
            "curve_every": recipe.training.curve_every or -(-recipe.total_steps // self.measurements),
        }
        training_settings = recipe.training.model_copy(update=values)
        named = {"name": run_name(recipe), "training": training_settings}
        return validate(Recipe, recipe.model_copy(update=named).model_dump(), "the run")

    def _learning_rate(self, recipe: Recipe, given: Any) -> Any:
        """By the rule; ``given`` is base's rate."""
        if self.learning_rate == "size":
            if given is not None:
                raise ConfigError(
                    f"base.training.learning_rate is {given}, but the rule is learning_rate: size (each size's own); "
                    "set learning_rate to fixed or width, or leave the rate out"
                )
            return recipe.model.learning_rate
        if given is None:
            raise ConfigError(
                f"the rule learning_rate: {self.learning_rate} needs base.training.learning_rate, which is missing"
            )
        if self.learning_rate == "fixed" or not isinstance(given, int | float):
            return given
        base = validate(SizedModel, self.base.get("model") or {}, "base.model")
        assert isinstance(recipe.model, SizedModel)
        return given * base.shape.width / recipe.model.shape.width


def _checked_axis(name: str) -> list[str]:
    """The settings of an axis.

    Raises:
        ConfigError: one of them cannot be an axis.
    """
    settings = axis_settings(name)
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


def run_name(recipe: Recipe) -> str:
    """``pico-c256-4.0M``: the runs that share it differ in seed."""
    tokens = recipe.total_steps * recipe.tokens_per_step
    return f"{size_name(recipe.model.model_dump())}-c{recipe.data.context}-{readable_count(tokens)}"


def run_id(recipe: Recipe) -> str:
    """``pico-c256-4.0M-s0-1f0c9ab2``: size, context, tokens, seed, and a hash of every setting that changes the result."""
    return f"{run_name(recipe)}-s{recipe.seed}-{content_id(recipe)}"


def load_sweep(path: Path, overrides: list[str] | None = None, output: Path | None = None) -> SweepRecipe:
    """Read a sweep file.

    Args:
        path: a YAML file.
        overrides: ``key=value`` settings of the sweep file that go before its own: ``base.seed=1``,
            ``grid.data.context=[64, 128]``, ``executor.jobs=2``.
        output: the sweep's folder, in place of the file's. For the ``sweep.yaml`` of a sweep's folder it is that folder.

    Raises:
        ConfigError: all that is wrong with it, in one message.
    """
    data = read_yaml(path)
    if isinstance(data.get("base"), str):
        data["base"] = read_yaml(path.parent / data["base"])
    for override in overrides or []:
        data = _overridden(data, override)
    if output is not None:
        data["output"] = str(output)
    elif (path.parent / PLAN).exists() and path.name == RESOLVED:
        data["output"] = str(path.parent)
    data.setdefault("name", path.stem)
    return validate(SweepRecipe, data, f"the sweep {path}")


def _overridden(data: dict[str, Any], override: str) -> dict[str, Any]:
    key, _, text = override.partition("=")
    first, _, rest = key.strip().partition(".")
    if first == "grid" and rest:  # an axis has dots in its name
        axis = with_overrides({}, [f"value={text}"])["value"]
        return {**data, "grid": {**(data.get("grid") or {}), rest: axis}}
    if first in set(Recipe.model_fields) - set(SweepRecipe.model_fields):
        raise ConfigError(f"--set {override!r}: the runs' recipe is under base; write --set base.{override}")
    return with_overrides(data, [override])
