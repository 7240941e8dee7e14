"""Sweeps: grids of model sizes and training contexts, on this machine or on a Ray cluster.

The experiment is that of context scaling (Section 3): model sizes × training contexts, the tokens of a step constant while the
context grows (so that documents per step fall), one corpus, and a constant learning rate after the warm-up, because every
point along a run represents a smaller run that ended there.

A sweep is a run set with a grid, in its own folder. It adds ``sweep.yaml`` (resolved) and ``plan.json`` (the runs and the
corpus's hash) to the files of a run set (:mod:`contextwise.experiments.folder`).
"""

import contextlib
import copy
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from contextwise.base.config import Name, Settings, read_yaml, settings_of, validate, with_overrides
from contextwise.base.errors import CheckpointError, ConfigError, ContextwiseError
from contextwise.base.files import atomic_write, read_json, write_json
from contextwise.base.progress import say
from contextwise.base.recipes import recipe_path
from contextwise.base.runs import differing_keys
from contextwise.data.corpus import Corpus
from contextwise.experiments.executors import ExecutorSettings
from contextwise.experiments.folder import PlannedRun
from contextwise.experiments.grid import (
    GRID,
    axis_points,
    axis_settings,
    content_id,
    grid_points,
    set_value,
    size_name,
)
from contextwise.experiments.run_set import Run, RunSet, planned_run
from contextwise.models.sizes import readable_count
from contextwise.training.recipe import Recipe
from contextwise.training.settings import CorpusData, SizedModel

RESOLVED, PLAN = "sweep.yaml", "plan.json"
"""Files of a sweep's folder: its settings, and its runs."""
CONTEXT = "data.context"
LENGTHS = ("training.tokens", "training.steps")
AXES = ("model.size", "model.layers", "model.width", "model.heads", CONTEXT, *LENGTHS, "seed")
"""Settings that may be axes: size, context, length and seed. Everything else is the same for all runs of a sweep."""
NEVER = {
    "training.learning_rate": "the rule of learning_rate sets it",
    "training.tokens_per_step": "it is the same for every context",
    "data.corpus": "the runs of a sweep share one corpus",
}

LearningRateRule = Literal["size", "fixed", "width"]


class SweepRecipe(Settings):
    """A grid of training runs."""

    name: Name
    base: dict[str, Any] = Field(
        description="a recipe, or the path of a recipe file, relative to the sweep file"
    )
    grid: dict[str, list[Any]] = Field(description=GRID)
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
    def _sweepable(cls, base: dict[str, Any]) -> dict[str, Any]:
        sections = {name: base.get(name) or {} for name in ("data", "model", "training")}
        problems = [
            f"{name} must be a mapping" for name, value in sections.items() if not isinstance(value, dict)
        ]
        if not problems:
            schedule = sections["training"].get("schedule", "constant")
            if schedule != "constant":
                problems.append(
                    f"training.schedule is {schedule!r}, but each point along a run represents a smaller run, whose learning "
                    "rate would have ended there; set it to constant"
                )
            if sections["model"].get("pretrained") is not None:
                problems.append(
                    "model.pretrained is given, but a sweep trains each size from scratch; leave it out"
                )
        if problems:
            raise ConfigError("; ".join(problems))
        return base

    @field_validator("grid", mode="after")
    @classmethod
    def _axes(cls, grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
        problems = [] if grid else ["it is empty; give model.size and data.context values"]
        seen: set[str] = set()
        for name, values in grid.items():
            settings = axis_settings(name)
            try:
                for setting in settings:
                    _check_axis(setting)
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
            ConfigError: a run is invalid, or is in the grid twice; all problems in one message.
        """
        step = (self.base.get("training") or {}).get("tokens_per_step", 8192)
        if isinstance(step, int) and step > 0:  # otherwise the recipe reports it
            wrong = [c for c in self.values(CONTEXT) if isinstance(c, int) and c > 0 and step % c]
            if wrong:
                contexts = f"{'contexts' if len(wrong) > 1 else 'context'} {', '.join(map(str, wrong))}"
                raise ConfigError(
                    f"the {contexts} of grid.{CONTEXT} {'do' if len(wrong) > 1 else 'does'} not divide "
                    f"base.training.tokens_per_step ({step}), which is the same for every context; choose contexts that divide "
                    "it, powers of two for example"
                )
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
        base_rate = training.pop("learning_rate", None)
        recipe = validate(Recipe, data, "the run")
        values = {
            "learning_rate": self._learning_rate(recipe, base_rate),
            "curve_every": recipe.training.curve_every or -(-recipe.total_steps // self.measurements),
        }
        named = {"name": run_name(recipe), "training": recipe.training.model_copy(update=values)}
        return validate(Recipe, recipe.model_copy(update=named).model_dump(), "the run")

    def _learning_rate(self, recipe: Recipe, base_rate: Any) -> Any:
        if self.learning_rate == "size":
            if base_rate is not None:
                raise ConfigError(
                    f"base.training.learning_rate is {base_rate}, but the rule is learning_rate: size (each size's own); "
                    "set learning_rate to fixed or width, or leave the rate out"
                )
            return recipe.model.learning_rate
        if base_rate is None:
            raise ConfigError(
                f"the rule learning_rate: {self.learning_rate} needs base.training.learning_rate, which is missing"
            )
        if self.learning_rate == "fixed" or not isinstance(base_rate, int | float):
            return base_rate
        base = validate(SizedModel, self.base.get("model") or {}, "base.model")
        assert isinstance(recipe.model, SizedModel)
        return base_rate * base.shape.width / recipe.model.shape.width


def _check_axis(setting: str) -> None:
    """Refuse a setting that cannot be an axis."""
    if setting in NEVER:
        raise ConfigError(f"{setting} cannot be an axis: {NEVER[setting]}; leave it out of grid")
    if setting not in AXES:
        near = difflib.get_close_matches(setting, AXES, n=1, cutoff=0.5)
        near = near or [axis for axis in AXES if axis.split(".")[-1] == setting.split(".")[-1]]
        hint = f"did you mean {near[0]!r}?" if near else f"the axes are {', '.join(AXES)}"
        raise ConfigError(f"{setting!r} cannot be an axis; {hint}")


def run_name(recipe: Recipe) -> str:
    """``pico-c256-4.0M``: the runs that share it differ in seed."""
    return (
        f"{size_name(recipe.model.model_dump())}-c{recipe.data.context}-{readable_count(recipe.total_tokens)}"
    )


def run_id(recipe: Recipe) -> str:
    """``pico-c256-4.0M-s0-1f0c9ab2``: size, context, tokens, seed, and a hash of every setting that changes the result."""
    return f"{run_name(recipe)}-s{recipe.seed}-{content_id(recipe)}"


def load_sweep(
    sweep: str | Path,
    overrides: Sequence[str] | Mapping[str, Any] | None = None,
    output: str | Path | None = None,
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
    path = recipe_path(sweep, "sweep")
    data = read_yaml(path)
    if isinstance(data.get("base"), str):
        data["base"] = read_yaml(recipe_path(data["base"], folder=path.parent))
    for key, value in settings_of(overrides or []):
        first, _, rest = key.partition(".")
        if first == "grid" and rest:  # an axis has dots in its name
            data["grid"] = {**(data.get("grid") or {}), rest: value}
        elif first in set(Recipe.model_fields) - set(SweepRecipe.model_fields):
            raise ConfigError(f"--set {key}: the runs' recipe is under base; write --set base.{key}={value}")
        else:
            data = with_overrides(data, {key: value})
    if output is not None:
        data["output"] = str(output)
    elif (path.parent / PLAN).exists() and path.name == RESOLVED:
        data["output"] = str(path.parent)
    data.setdefault("name", path.stem)
    return validate(SweepRecipe, data, f"the sweep {sweep}")


class Sweep(RunSet):
    """A sweep on disk, or one that is planned.

    Attributes:
        plan: the runs of the grid, in its order.
        corpus: content hash of the training data.
        settings: of a sweep that is planned; None for one that was opened.
    """

    def __init__(
        self,
        path: Path,
        plan: list[PlannedRun],
        corpus: str,
        runs: Iterable[Run] = (),
        settings: SweepRecipe | None = None,
    ) -> None:
        super().__init__(path, list(runs))
        self.plan, self.corpus, self.settings = plan, corpus, settings

    @classmethod
    def open(cls, path: str | Path) -> "Sweep":
        """Open an existing sweep, finished or not.

        Raises:
            CheckpointError: the folder does not exist, or holds no sweep.
        """
        path = Path(path)
        if not (path / PLAN).exists():
            raise CheckpointError(f"{path} is not a sweep: it has no {PLAN}")
        data = read_json(path / PLAN, "the sweep's plan")
        known = {field.name for field in fields(PlannedRun)}
        try:
            plan = [PlannedRun(**{k: v for k, v in run.items() if k in known}) for run in data["runs"]]
            return cls(path, plan, data["corpus"])
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path / PLAN} is damaged: {error}") from None

    @classmethod
    def planned(cls, settings: SweepRecipe) -> "Sweep":
        """The sweep of these settings, every run checked against the corpus; nothing is written.

        Raises:
            ConfigError: runs do not fit the corpus or each other (all in one message); the folder holds something else.
            DataError: there is no such corpus.
        """
        problems: dict[str, None] = {}
        runs, plan, fingerprint = grid_runs(settings), [], ""
        for run in runs:
            recipe = run.recipe()
            assert isinstance(recipe.data, CorpusData)
            try:
                fingerprint = fingerprint or Corpus.open(recipe.data.corpus, recipe.data.split).fingerprint
                plan.append(planned_run(run.id, recipe))
            except ContextwiseError as error:
                problems[str(error)] = None
        if problems:
            raise ConfigError(*problems, where="the sweep" if len(problems) > 1 else "")
        sweep = cls(settings.folder, plan, fingerprint, runs, settings)
        sweep.refuse_other(settings)
        return sweep

    @property
    def sizes(self) -> dict[str, int]:
        """Model size -> fewest parameters of its runs, in ascending order."""
        by_parameters = sorted(self.plan, key=lambda run: run.parameters, reverse=True)
        return dict(reversed({run.size: run.parameters for run in by_parameters}.items()))

    @property
    def contexts(self) -> dict[str, list[int]]:
        """Model size -> its training contexts, the shortest first; sizes by parameters."""
        return {size: sorted({run.context for run in self.plan if run.size == size}) for size in self.sizes}

    @property
    def name(self) -> str:
        return self.path.name if self.settings is None else self.settings.name

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        for note in notes(self.plan):
            say(f"note: {note}")
        with super().claimed():
            yield

    def write(self) -> None:
        """Write settings, plan and the recipe of each run; a sweep that exists may only have gained runs."""
        assert self.settings is not None
        self.refuse_other(self.settings)
        super().write()
        resolved = yaml.safe_dump(self.settings.resolved(), sort_keys=False, allow_unicode=True)
        atomic_write(self.path / RESOLVED, resolved, "the sweep's recipe")
        runs = [asdict(run) for run in self.plan]
        write_json(self.path / PLAN, {"corpus": self.corpus, "runs": runs}, "the sweep's plan")

    def refuse_other(self, settings: SweepRecipe) -> None:
        """Refuse a folder that holds another sweep, or other files; the error names what differs."""
        if not (self.path / PLAN).exists():
            if self.path.exists() and not self.path.is_dir():
                raise ConfigError(f"{self.path} is a file; choose another folder for the sweep with --out")
            allowed = {"recipes", RESOLVED}  # of a first call that was stopped early
            files = [file.name for file in self.path.iterdir()] if self.path.exists() else []
            if any(not name.startswith(".") and name not in allowed for name in files):
                raise ConfigError(
                    f"{self.path} is not empty and holds no sweep; choose another folder with --out"
                )
            return
        kept = Sweep.open(self.path)
        if kept.corpus != self.corpus:
            raise ConfigError(
                f"the corpus is not the one that the sweep {self.path} was begun with (its content hash differs); put that "
                "one back, or choose another folder with --out"
            )
        lost = {run.id for run in kept.plan} - {run.id for run in self.plan}
        if lost:
            before = validate(SweepRecipe, read_yaml(self.path / RESOLVED), "the kept sweep")
            different = differing_keys(before.resolved(), settings.resolved())
            named = sorted(n for n in different if not n.startswith("executor") and n != "name")
            what = ", ".join(named[:6]) or "defaults of its runs' recipe"
            raise ConfigError(
                f"{self.path} holds another sweep (it differs in {what}; {len(lost)} of its runs are not in this one): choose "
                "another folder with --out; a grid may gain runs, but those that are there must stay as they are"
            )


def grid_runs(settings: SweepRecipe) -> list[Run]:
    """The runs of a sweep's grid. Corpus paths are absolute, since a run may start on another machine, in another folder."""
    runs = []
    for name, recipe in settings.recipes().items():
        assert isinstance(recipe.data, CorpusData)
        data = recipe.data.model_copy(update={"corpus": str(Path(recipe.data.corpus).absolute())})
        values = recipe.model_copy(update={"data": data}).resolved()
        runs.append(Run(name, settings.name, recipe.seed, {}, settings.folder / "runs" / name, values))
    return runs


def run_sweep(settings: SweepRecipe) -> Sweep:
    """Train a sweep to its end, or resume it.

    1. Check every run against the corpus, and count what it costs.
    2. Claim the folder: settings, plan, a recipe for each run.
    3. Train the runs that have not finished, on this machine or on a Ray cluster; try failed ones again.

    Returns:
        The finished sweep.

    Raises:
        ConfigError, DataError, CheckpointError: the input is at fault; nothing was started.
        TrainingError: some runs failed, all others have finished.
        Interrupted: a signal asked to stop; the progress is saved.
    """
    sweep = Sweep.planned(settings)
    sweep.train_missing(settings.executor)
    return sweep


def notes(plan: Iterable[PlannedRun]) -> list[str]:
    """Notes on axes along which these runs cannot be compared."""
    runs = list(plan)
    axes: dict[str, set[Any]] = {"training context": {run.context for run in runs}}
    axes["model size"] = {run.size for run in runs}
    return [
        f"all runs have one {what} ({next(iter(values))}): nothing can be compared along it"
        for what, values in axes.items()
        if len(values) == 1
    ]
