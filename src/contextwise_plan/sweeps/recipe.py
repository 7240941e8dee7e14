"""The recipe of a sweep: a grid of model sizes and training contexts, as in context scaling (Section 3).

The runs of one size, context and seed are a *cell*; they differ in length. With the schedule ``wsd`` each is finished, and the
longest is the trunk of the others, which train only their decay (:mod:`contextwise.training.branching`). With ``constant``
every measurement along a run stands for a smaller run that ended there.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from contextwise.base.config import LARGEST_INTEGER, settings_of, with_output
from contextwise.base.files import expanded
from contextwise.base.recipes import recipe_path
from contextwise.experiments.grid import GRID, axis_points, axis_settings, content_id, grid_points
from contextwise.report import count, counted, listed
from contextwise.runset import AnyExecutor, ExecutorSettings, Question, size_name
from contextwise.settings import ConfigError, Name, Settings, did_you_mean, read_yaml, validate, with_overrides
from contextwise.training import Recipe, SizedModel
from contextwise.training.settings import model_kinds

CONTEXT = "data.context"
COMPUTE = "training.flops"  # an axis that is no setting of a run: its steps follow from the cost of one
LENGTHS = ("training.tokens", "training.steps", COMPUTE)
AXES = ("model.size", "model.layers", "model.width", "model.heads", CONTEXT, *LENGTHS, "seed")
"""Settings that may be axes: size, context, length and seed. Everything else is the same for all runs of a sweep."""
_EACH = "the sweep sets it for each run; leave it out"
_SAME_TOKENS = (
    "the runs of a sweep have the same tokens in a step at every context; set training.tokens_per_step instead"
)
REFUSED = (
    ("training", "trunk", _EACH),
    ("training", "branches", _EACH),
    ("training", "examples_per_step", _SAME_TOKENS),
    ("model", "pretrained", "a sweep trains each size from scratch; leave it out"),
)
LONG = 10**12  # tokens of a run whose length is not known yet
CURVES = 16  # context curves along a run of constant rate, if the sweep does not say
LearningRateRule = Literal["size", "fixed", "width"]


class SweepRecipe(Settings):
    """A grid of training runs."""

    below = dict.fromkeys(("data", "objective", "model", "training"), "base")

    name: Name
    base: dict[str, Any] = Field(description="a recipe, or the path of a recipe file, relative to the sweep file")
    grid: dict[str, list[Any]] = Field(description=GRID)
    learning_rate: LearningRateRule = Field(
        default="size",
        description="size: each size's own rate, the same for every context; fixed: base's; width: base's times the width of "
        "base's model / that of the run's",
    )
    measurements: int | None = Field(
        default=None,
        ge=1,
        description="context curves along a run, evenly spaced; by default one at its end, and 16 with schedule: constant",
    )
    executor: AnyExecutor = ExecutorSettings()
    output: str = Field(default="", description="the sweep's folder; sweeps/<name> if not given")

    @field_validator("base", mode="after")
    @classmethod
    def _sweepable(cls, base: dict[str, Any]) -> dict[str, Any]:
        sections = {name: base.get(name) or {} for name in ("data", "model", "training")}
        problems = [f"{name} must be a mapping" for name, value in sections.items() if not isinstance(value, dict)]
        if not problems:
            schedule = sections["training"].get("schedule", "wsd")
            if schedule not in ("wsd", "constant"):
                problems.append(
                    f"training.schedule is {schedule!r}, but the runs of a cell share their steps before the decay; set it to "
                    "wsd, or to constant, where each point along a run represents a smaller run"
                )
            problems += [
                f"{section}.{name} is given, but {why}"
                for section, name, why in REFUSED
                if sections[section].get(name) not in (None, [])
            ]
        if problems:
            raise ConfigError("; ".join(problems))
        return base

    @field_validator("grid", mode="after")
    @classmethod
    def _axes(cls, grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
        problems = [] if grid else ["it is empty; give model.size and data.context values"]
        seen: list[str] = []
        for name, values in grid.items():
            settings = axis_settings(name)
            try:
                for setting in settings:
                    if setting not in AXES:
                        hint = did_you_mean(setting, AXES, f"the axes are {', '.join(AXES)}")
                        raise ConfigError(f"{setting!r} cannot be an axis; {hint}")
                axis_points(name, values)
            except ConfigError as error:
                problems.append(str(error))
                continue
            seen += settings
        problems += [f"{setting} is in the grid twice" for setting, times in Counter(seen).items() if times > 1]
        lengths = [name for name in LENGTHS if name in seen]
        if not problems and len(lengths) > 1:
            problems.append(f"{' and '.join(lengths)} are both axes; they set the same length, keep one of the two")
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
            data["base"]["data"]["corpus"] = str(expanded(data["base"]["data"]["corpus"]).absolute())
        return data

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        return expanded(self.output or f"sweeps/{self.name}")

    def values(self, setting: str) -> list[Any]:
        """The values that a setting takes in the grid, in its order; none if it is no axis."""
        points = [point for name, values in self.grid.items() for point in axis_points(name, values)]
        values = [point[setting] for point in points if setting in point]
        return [value for i, value in enumerate(values) if value not in values[:i]]  # lists have no hash

    @property
    def longest(self) -> int | None:
        """The longest training context, at whose targets every run is measured."""
        given = (self.base.get("training") or {}).get("curve_longest")
        contexts = self.values(CONTEXT) or [(self.base.get("data") or {}).get("context", 256)]
        return given or max((c for c in contexts if isinstance(c, int)), default=None)

    def recipes(self, step_costs: Mapping[str, float] | None = None) -> dict[str, Recipe]:
        """Every run's recipe by its id, in the order of the grid; a ConfigError if a run is invalid, or in the grid twice.

        ``step_costs`` are the FLOPs of a training step by :func:`cell_name`, which a grid of FLOP budgets needs. Without them
        each cell has one recipe, whose length stands for all.
        """
        for context in self.values(CONTEXT):
            if not isinstance(context, int) or isinstance(context, bool):
                raise ConfigError(
                    f"grid.{CONTEXT} holds {context!r}, which is no whole number; write it without quotes and point"
                )
        recipes: dict[str, Recipe] = {}
        problems: dict[str, None] = {}
        for point in grid_points(self.grid):
            try:
                recipe = self._recipe(point, step_costs)
                name = run_id(recipe)
                if name in recipes and self.values(COMPUTE) and step_costs is None:
                    _check_lengths(recipe)  # another budget of the cell
                elif name in recipes:
                    where = ", ".join(f"{setting}={value}" for setting, value in point.items())
                    raise ConfigError(f"the grid has one run twice ({where})")
                recipes[name] = recipe
            except ConfigError as error:
                problems[str(error).removeprefix("the run has a problem: ")] = None
        if problems:
            first, *others = problems
            raise ConfigError(first + f" (and {counted(len(others), 'more problem')} of other runs)" * bool(others))
        _check_heads(recipes.values())
        return self._with_trunks(recipes)

    def _with_trunks(self, recipes: dict[str, Recipe]) -> dict[str, Recipe]:
        """The recipes; where a cell has several lengths, with its longest run as the trunk of the others."""
        from contextwise.training.branching import may_branch

        cells: dict[tuple[str, int], list[str]] = {}
        for name, recipe in recipes.items():
            cells.setdefault((cell_name(recipe), recipe.seed), []).append(name)
        changed = dict(recipes)
        for names in cells.values():
            if len(names) == 1:
                continue
            _check_lengths(recipes[names[0]])
            steps = [recipes[name].total_steps for name in names]
            if twice := [each for each in steps if steps.count(each) > 1]:
                raise ConfigError(
                    f"two lengths of {cell_name(recipes[names[0]])} are {twice[0]:,} steps, so they are one run; keep one"
                )
            trunk = max(names, key=lambda name: recipes[name].total_steps)
            path = (self.folder / "runs" / trunk).absolute()
            branches = []
            for name in names:
                training = recipes[name].training
                if name != trunk and may_branch(path, recipes[name]):
                    changed[name] = _with_training(recipes[name], trunk=str(path))
                    branches.append(training.tokens or training.steps)
            changed[trunk] = _with_training(recipes[trunk], branches=sorted(branches))
        return changed

    def _recipe(self, point: dict[str, Any], step_costs: Mapping[str, float] | None) -> Recipe:
        """The recipe at one point of the grid."""
        axis = next((name for name in LENGTHS if name in point), None)
        data = with_overrides(self.base, {setting: value for setting, value in point.items() if setting != axis})
        data.pop("output", None)
        training = data["training"] = data.get("training") or {}
        if axis is not None:  # in place of base's, in whichever form that is
            for length in LENGTHS:
                training.pop(length.removeprefix("training."), None)
            training["tokens"] = LONG
        data["name"] = self.name
        training.setdefault("schedule", "wsd")
        training.setdefault("curve_longest", self.longest)
        base_rate = training.get("learning_rate")
        recipe = validate(Recipe, data, "the run")
        if axis is not None:
            recipe = self._of_length(recipe, axis, point[axis], step_costs)
        curves = self.measurements or (CURVES if recipe.training.schedule == "constant" else 1)
        return _with_training(
            recipe.model_copy(update={"name": run_name(recipe)}),
            learning_rate=self._learning_rate(recipe, base_rate),
            curve_every=recipe.training.curve_every or -(-recipe.total_steps // curves),
        )

    def _of_length(self, recipe: Recipe, axis: str, value: Any, step_costs: Mapping[str, float] | None) -> Recipe:
        """A recipe with the length that a value of an axis stands for."""
        settings, name, amount = recipe.training, cell_name(recipe), _number(axis, value)
        costs = {"training.steps": 1, "training.tokens": recipe.tokens_per_step, COMPUTE: (step_costs or {}).get(name)}
        cost = costs[axis]
        if cost is None:
            return recipe
        if amount / cost * recipe.tokens_per_step > LARGEST_INTEGER:
            raise ConfigError(
                f"grid.{axis} has {amount:g}, with which {name} trains {amount / cost:.3g} steps, more than "
                f"{LARGEST_INTEGER:.4g} tokens; give it less"
            )
        steps = max(1, round(amount / cost)) if axis == COMPUTE else math.ceil(amount / cost)
        if settings.schedule == "wsd":
            warmup, decay = settings.warmup(steps), settings.decay(steps)
            if steps - decay < max(1, warmup):
                raise ConfigError(
                    f"grid.{axis} has {amount:g}, with which {name} trains {steps} "
                    f"step{'s' * (steps != 1)}, too few for one decay: its warm-up takes {warmup} and its decay {decay}; give "
                    "it more, or set base.training.warmup_steps or decay_steps lower"
                )
        if axis == COMPUTE:
            return _with_training(recipe, tokens=steps * recipe.tokens_per_step)
        return _with_training(recipe, **{"tokens": None, axis.removeprefix("training."): int(amount)})

    def _learning_rate(self, recipe: Recipe, base_rate: Any) -> Any:
        if self.learning_rate == "size":
            if base_rate is not None:
                raise ConfigError(
                    f"base.training.learning_rate is {base_rate}, but the rule is learning_rate: size (each size's own); "
                    "set learning_rate to fixed or width, or leave the rate out"
                )
            return recipe.learning_rate
        if base_rate is None:
            raise ConfigError(
                f"the rule learning_rate: {self.learning_rate} needs base.training.learning_rate, which is missing"
            )
        rate = recipe.training.learning_rate  # a number: YAML reads 1e-3 as text
        assert rate is not None
        if self.learning_rate == "fixed":
            return rate
        if recipe.training.parametrization == "mup":
            raise ConfigError(
                "learning_rate: width divides rates by the width, which base.training.parametrization: mup does by itself; set "
                "learning_rate to fixed"
            )
        base: Any = validate(model_kinds()["sized"], self.base.get("model") or {}, "base.model")
        assert isinstance(recipe.model, SizedModel)
        return rate * base.shape.width / recipe.model.shape.width


def _number(axis: str, given: Any) -> float:
    """A length in tokens or steps, or a budget in FLOPs; a ConfigError if it is none."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        value = float(given)  # YAML reads 1e12, without a point and a sign, as text
        if 0 < value < float("inf") and (axis == COMPUTE or value.is_integer()):
            return value
    whole = "" if axis == COMPUTE else "whole "
    raise ConfigError(f"grid.{axis} has {given!r:.60}, which is no positive {whole}number")


def _with_training(recipe: Recipe, **changes: Any) -> Recipe:
    """A recipe with other values of ``training``, checked again."""
    training = recipe.training.model_copy(update=changes)
    return validate(Recipe, recipe.model_copy(update={"training": training}).model_dump(), "the run")


def _check_heads(recipes: Iterable[Recipe]) -> None:
    """Refuse models under µP whose heads differ in width, which µP keeps."""
    shapes = [
        run.model.shape
        for run in recipes
        if isinstance(run.model, SizedModel) and run.training.parametrization == "mup"
    ]
    heads = sorted({shape.width // shape.heads for shape in shapes})
    if len(heads) > 1:
        raise ConfigError(
            f"the models of grid have heads of {listed([str(head) for head in heads])} channels, but with "
            "base.training.parametrization: mup all have one width of a head; give both, such as "
            f"'model.width, model.heads': [[{4 * heads[0]}, 4], [{8 * heads[0]}, 8]]"
        )


def _check_lengths(recipe: Recipe) -> None:
    """Refuse settings with which a cell cannot have runs of several lengths."""
    settings = recipe.training
    if settings.schedule == "constant":
        raise ConfigError(
            f"{cell_name(recipe)} has several lengths, but with base.training.schedule: constant the readings along the "
            "longest run stand for shorter ones; keep the longest alone, or leave the schedule out (wsd)"
        )
    if settings.schedule == "wsd" and 0 < settings.warmup_steps < 1:
        raise ConfigError(
            f"base.training.warmup_steps is {settings.warmup_steps:g}, a share of each run, but the runs of a cell begin with "
            "the same steps; give a number of steps"
        )


def cell_name(recipe: Recipe) -> str:
    """``pico-c256``: size and context, on which the cost of a step depends."""
    return f"{size_name(recipe.model.model_dump())}-c{recipe.data.context}"


def run_name(recipe: Recipe) -> str:
    """``pico-c256-4M``: the runs that share it differ in seed."""
    return f"{cell_name(recipe)}-{count(recipe.total_tokens)}"


def run_id(recipe: Recipe) -> str:
    """``pico-c256-4M-s0-1f0c9ab2``: size, context, tokens, seed, and a hash of every setting that changes the result."""
    return f"{run_name(recipe)}-s{recipe.seed}-{content_id(recipe)}"


def load_sweep(
    sweep: str | Path, overrides: Sequence[str] | Mapping[str, Any] | None = None, output: str | Path | None = None
) -> SweepRecipe:
    """Read the recipe of a sweep.

    Args:
        sweep: a YAML file, or the name of a sweep that comes with the package.
        overrides: ``key=value`` settings of the sweep file that go before its own: ``base.seed=1``,
            ``grid.data.context=[64, 128]``, ``executor.jobs=2``.
        output: the sweep's folder, in place of the file's. For the ``sweep.yaml`` of a sweep's folder it is that folder.

    Raises:
        ConfigError: lists everything that is wrong with it.
    """
    data, folder = Question.read_file(sweep, "sweep")
    changes = settings_of(overrides or [])
    if given := [value for key, value in changes if key == "base"]:
        data["base"] = given[-1]
    if isinstance(data.get("base"), str):
        data["base"] = read_yaml(recipe_path(data["base"], folder=folder))
    for key, value in [each for each in changes if each[0] != "base"]:
        first, _, rest = key.partition(".")
        grid = data.get("grid") or {}
        if first == "grid" and rest and isinstance(grid, dict):  # an axis has dots in its name
            others = set(LENGTHS) - {rest} if rest in LENGTHS else set()  # one length takes the place of another
            data["grid"] = {k: v for k, v in grid.items() if k not in others} | {rest: value}
        elif first in set(Recipe.model_fields) - set(SweepRecipe.model_fields):
            raise ConfigError(f"--set {key}: the runs' recipe is under base; write --set base.{key}={value}")
        else:
            data = with_overrides(data, {key: value})
    return validate(SweepRecipe, with_output(data, overrides, output), f"the sweep {sweep}")
