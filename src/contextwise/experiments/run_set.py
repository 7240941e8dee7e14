"""Run sets: training runs that belong together.

A run set is named arms × seeds × the points of a grid. An arm is the shared recipe with some settings of its own, or a model
that exists already.

1. ``@NAME`` in an arm's settings is the run folder of the arm NAME with the same seed (or its only run): the run's
   parent, which is trained first. ``model.pretrained=@base`` continues it.
2. A run's folder is ``runs/<name>-s<seed>-<id>``. The id is a hash of every setting that changes the result, of the content of
   all that the run starts from (corpora, metadata, models), and of the parents' ids: a run is found again for the same question
   only, and refused if a parent's model was replaced by hand.
3. What has finished is not trained again, what was stopped resumes. A run that another process trains is waited for.
"""

import contextlib
import copy
import itertools
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import yaml
from pydantic import AfterValidator, Field, field_validator, model_validator

from contextwise.base.config import Seeds, Settings, validate, with_overrides
from contextwise.base.errors import CheckpointError, ConfigError, Problem, TrainingError, check_alone
from contextwise.base.estimates import count
from contextwise.base.files import atomic_write, exclusive, is_held
from contextwise.base.progress import interruption, say
from contextwise.base.runs import RunFolder
from contextwise.experiments.causality import refuse_leaking_variant
from contextwise.experiments.executors import ExecutorSettings
from contextwise.experiments.folder import PlannedRun, RunSetFolder
from contextwise.experiments.grid import GRID, content_id, grid_points, size_name, slug
from contextwise.experiments.scheduling import schedule
from contextwise.training.identity import corpus_paths, input_hashes, refuse_changed, start_digest
from contextwise.training.kinds import VariantSettings
from contextwise.training.recipe import Recipe, few_steps
from contextwise.training.settings import CorpusData

if TYPE_CHECKING:
    from contextwise.experiments.cost import RunCost

FAST_TRAINING: dict[str, Any] = {
    "warmup_steps": 0.04,
    "schedule": "linear",
    "optimizer": "muon",
    "muon_learning_rate": 0.04,
    "muon_momentum": 0.9,
    "learning_rate": 0.02,
    "beta1": 0.8,
}
"""Settings of the demo and of trials by default: Muon for the blocks, AdamW with a high rate for the rest."""


def with_sections(recipe: dict[str, Any]) -> dict[str, Any]:
    """The values of a recipe, with the section ``data``, and without sections that are given empty."""
    names = ("data", "model", "training")
    wrong = [name for name in names if not isinstance(recipe.get(name) or {}, dict)]
    if wrong:
        raise ConfigError(*(Problem("but must be a mapping", name, recipe[name]) for name in wrong))
    return {"data": {}} | {name: value for name, value in recipe.items() if name not in names or value}


RecipeValues = Annotated[dict[str, Any], AfterValidator(with_sections)]
"""A recipe as plain values, whose sections are mappings."""


class Arm(Settings):
    """One way to train: the shared recipe with settings of its own; or a model that exists already."""

    short_form: ClassVar[dict[str, Any]] = {"type": ["null", "string", "array"], "items": {"type": "string"}}

    settings: list[str] = Field(
        default_factory=list,
        description="before the shared recipe's, as in --set: model.extra_layers=2; @NAME is the run folder of another arm",
    )
    recipe: RecipeValues | None = Field(
        default=None, description="in place of the shared recipe; of a model that exists, its size for plans"
    )
    seeds: Seeds | None = Field(default=None, min_length=1, description="in place of the set's")
    model: str = Field(
        default="", description="a run, a folder of a model, or NAME or NAME@REVISION on the Hub, used as it is"
    )

    @model_validator(mode="before")
    @classmethod
    def _settings_alone(cls, data: Any) -> Any:
        if isinstance(data, dict) and (
            data.keys() & {"data", "objective", "training"} or isinstance(data.get("model"), dict)
        ):
            raise ConfigError(
                "it holds sections of a recipe; give changed settings as a list, [model.size=pico], or `recipe`"
            )
        return {"settings": data} if isinstance(data, list) else data


class RunSetSettings(Settings):
    """Arms, seeds and a grid."""

    recipe: dict[str, Any] = Field(default_factory=dict, description="what the arms share")
    arms: dict[str, Arm] = Field(min_length=1, description="name -> settings of its own")
    seeds: Seeds = Field(default=[0], min_length=1, description="every arm is trained with each")
    grid: dict[str, list[Any]] = Field(default_factory=dict, description=GRID)

    @field_validator("grid", mode="after")
    @classmethod
    def _axes(cls, grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
        grid_points(grid)
        return grid


@dataclass(frozen=True)
class Run:
    """A run of a set, or a model that exists already."""

    id: str  # names its folder
    arm: str
    seed: int
    point: dict[str, Any]  # setting -> value, where there is a grid
    folder: Path  # of the run, or the path or Hub name of the model
    values: dict[str, Any] | None  # its recipe; None for a model
    parents: tuple["Run", ...] = ()  # the runs that it is made from
    shape: dict[str, Any] | None = None  # ``model`` settings of the size of a model, for plans that cannot open it
    inputs: Mapping[str, str] = field(
        default_factory=dict
    )  # content hashes of what it starts from, without its parents

    @property
    def source(self) -> str:
        """The path or Hub name by which the model is measured."""
        return str(self.folder)

    def recipe(self) -> Recipe:
        """The recipe to train with; a parent whose model is continued must have been trained."""
        return validate(Recipe, self.values or {}, f"the run {self.arm}")

    def planned_recipe(self) -> Recipe:
        """The recipe with a new model of the same size in place of a parent's, which may not have been trained."""
        return validate(Recipe, _stand_in(self.values or {}, self.parents), f"the run {self.arm}")


class RunSet(RunSetFolder):
    """Training runs that belong together, in one folder; each behind its parents."""

    def __init__(self, path: Path, runs: list[Run]) -> None:
        self.path, self.name, self.runs = path, path.name, runs

    @property
    def trained(self) -> list[Run]:
        """The runs that are trained; the others are models."""
        return [run for run in self.runs if run.values is not None]

    @property
    def paths(self) -> list[Path]:
        """Folders of the runs that are trained."""
        return [run.folder for run in self.trained]

    @classmethod
    def of(
        cls,
        settings: RunSetSettings,
        path: Path,
        *,
        corpus: Path | None = None,
        prefix: str = "",
        wanted: Iterable[str] | None = None,
    ) -> "RunSet":
        """The runs of arms, seeds and grid; nothing is trained.

        Args:
            corpus: of arms whose recipe names none.
            prefix: of the arms' names in folder names.
            wanted: arms that are needed, with those that they are made from; all if not given.
        """
        expansion = _Expansion(settings, path, corpus, prefix)
        return cls(path, expansion.runs_of(settings.arms if wanted is None else wanted))

    def warn_of_few_steps(self) -> None:
        """Print the warning about runs of few steps (:func:`~contextwise.training.recipe.few_steps`), if there are any."""
        if warning := few_steps(run.planned_recipe().total_steps for run in self.trained):
            say(f"note: {warning}")

    @cached_property
    def plan(self) -> list[PlannedRun]:  # type: ignore[override]
        """Every run with its cost; nothing is trained."""
        from contextwise.experiments.cost import costs_of

        recipes = [run.planned_recipe() for run in self.trained]
        costs = costs_of(recipes)
        return [planned_run(run, recipe, cost) for run, recipe, cost in zip(self.trained, recipes, costs, strict=True)]

    @cached_property
    def beginnings(self) -> dict[str, dict[str, Path | None]]:  # type: ignore[override]
        """Run -> each of its parents, with the checkpoint that it begins from if the parent is its trunk."""
        beginnings: dict[str, dict[str, Path | None]] = {}
        for run in self.trained:
            trained = [parent.id for parent in run.parents if parent.values is not None]
            path = run.planned_recipe().trunk_checkpoint if trained else None
            trunk = None if path is None else path.parent.parent.name
            beginnings[run.id] = {parent: path if parent == trunk else None for parent in trained}
        return beginnings

    def of_arm(self, arm: str, point: dict[str, Any] | None = None) -> list[Run]:
        """The runs of an arm, seed by seed; all points, or those with these values of settings."""
        return [run for run in self.runs if run.arm == arm and (point or {}).items() <= run.point.items()]

    def folders(self, arm: str, point: dict[str, Any] | None = None) -> list[RunFolder]:
        """The folders of an arm's runs, as :meth:`of_arm` selects them."""
        return [RunFolder(run.folder) for run in self.of_arm(arm, point)]

    def train_missing(self, executor: ExecutorSettings | None = None, *, may_diverge: bool = False) -> None:
        """Train every run that has not finished; what was stopped resumes.

        Where runs fail, the others are trained first, but for those that begin from them.

        Args:
            executor: where runs are trained; by default one after another in this process.
            may_diverge: a run whose loss is not finite is no failure, and later calls leave it.
        """
        check_alone("a set of runs")
        self.refuse_changed()
        for run in self.trained:
            if not RunFolder(run.folder).finished:
                refuse_leaking_variant(run.planned_recipe())
        if may_diverge and any(run.diverged for run in map(RunFolder, self.paths)):
            RunSet(self.path, [run for run in self.runs if not _ended(run)]).train_missing(executor, may_diverge=True)
            return
        executor = executor or ExecutorSettings()
        with self.claimed(), interruption.listening():
            left = [run for run in self.trained if not RunFolder(run.folder).finished]
            for folder in self.paths:
                is_held(folder, inside=True)  # which removes the lock of a process that was killed at its end
            if not left and may_diverge:  # before torch is imported, which counts the GPUs
                return
            brief = executor.here and not self.status_command  # each run reports itself
            if not left:
                if not brief:
                    say(f"{self.path}: all {len(self.plan)} runs are finished already: nothing to train")
                return
            if not brief:
                amounts = f"{self.flops:.2e} FLOPs and {count(self.tokens)} tokens in all"
                say(f"{self.name}: {len(left)} of {len(self.plan)} runs to do, {amounts}")
            try:
                schedule(self, executor.executor(self))
            except TrainingError:
                if not may_diverge or not all(_ended(run) for run in left if not RunFolder(run.folder).finished):
                    raise

    def refuse_changed(self) -> None:
        """Raise a DataError if a finished run was trained on other inputs than there are now, its parents' models included."""
        hashes: dict[str, dict[str, str]] = {}
        for run in self.trained:
            folders = [RunFolder(each.folder) for each in (run, *run.parents) if each.values is not None]
            if all(folder.finished for folder in folders):
                recipe = run.recipe()
                key = _read_by(recipe)
                hashes[key] = hashes.get(key) or input_hashes(recipe)
                refuse_changed(folders[0], recipe, hashes[key])

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder for this process, with everything in it that the runs' processes need.

        If another process holds the folder, wait for it and print a message.
        """
        with exclusive(self.path, "the runs", wait=True, inside=True):
            self.write()
            yield

    def write(self) -> None:
        """Write the recipe of each run for the process that trains it; an equal file stays as it is."""
        for run in self.trained:
            text = yaml.safe_dump(run.values, sort_keys=False, allow_unicode=True)
            file = self.recipe_file(run.id)
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                atomic_write(file, text, "a run's recipe")


def planned_run(run: Run, recipe: Recipe, cost: "RunCost") -> PlannedRun:
    """A run with its cost; what one that has finished or begun shares with a trunk is what it did share.

    Args:
        cost: of this run, or of one that differs in length and seed alone.
    """
    shared, folder, trunk = 0, RunFolder(run.folder), recipe.training.trunk
    if folder.finished:
        shared = folder.summary().get("trunk", {"tokens": 0})["tokens"]
    elif (folder.recipe()["training"].get("trunk") if folder.exists else trunk) is not None:
        shared = recipe.decay_start() * recipe.tokens_per_step
    return PlannedRun(
        id=run.id,
        size=size_name(recipe.model.model_dump()),
        parameters=cost.parameters,
        context=recipe.data.context,
        tokens=recipe.total_tokens,
        steps=recipe.total_steps,
        seed=recipe.seed,
        learning_rate=recipe.learning_rate,
        flops=cost.flops * (recipe.total_tokens / cost.tokens),
        trunk_tokens=shared,
    )


def _ended(run: Run) -> bool:
    """Whether a run diverged, or one that it begins from."""
    return any(RunFolder(each.folder).diverged for each in (run, *run.parents) if each.values is not None)


class _Expansion:
    """Expansion of settings into runs."""

    def __init__(self, settings: RunSetSettings, path: Path, corpus: Path | None, prefix: str) -> None:
        self.settings, self.path, self.corpus, self.prefix = settings, path, corpus, prefix
        self.made: dict[tuple[str, int, int], Run] = {}
        self.inputs: dict[str, dict[str, str]] = {}
        self.points = grid_points(settings.grid)

    def runs_of(self, arms: Iterable[str]) -> list[Run]:
        """The runs of these arms, each after its parents; seed by seed, so that a set that was stopped has whole seeds."""
        arms = list(dict.fromkeys(arms))
        own_seeds = [seed for arm in arms for seed in self._seeds(arm)]
        seeds = dict.fromkeys([*self.settings.seeds, *own_seeds])
        for seed, number, arm in itertools.product(seeds, range(len(self.points)), arms):
            if seed in self._seeds(arm):
                self._make(arm, seed, number, ())
        self._refuse_same_folders()
        return list(self.made.values())

    def _refuse_same_folders(self) -> None:
        """Refuse arms that are trained alike and whose names differ in what not all file systems tell apart."""
        folders: dict[str, Run] = {}
        for run in self.made.values():
            other = folders.setdefault(unicodedata.normalize("NFKC", run.id).casefold(), run)
            if other.arm != run.arm and run.values is not None:
                raise ConfigError(
                    f"the arms {other.arm!r} and {run.arm!r} have the same folder, {run.id}: they are trained alike, and their "
                    "names differ in case, spaces or signs alone; give one of them another name"
                )

    def _seeds(self, arm: str) -> list[int]:
        own = self.settings.arms[arm]
        return [0] if own.model else own.seeds or self.settings.seeds

    def _make(self, name: str, seed: int, number: int, children: tuple[str, ...]) -> Run:
        """The run of an arm, seed and point; its parents are made first."""
        if name in children:
            raise ConfigError(f"the arm {name!r} is made from itself: {' <- '.join([*children, name])}")
        if name not in self.settings.arms:
            raise ConfigError(
                f"the arm {children[-1]!r} names {name!r}, which is none of {', '.join(self.settings.arms)}"
            )
        seeds = self._seeds(name)
        if seed not in seeds:
            if len(seeds) > 1:
                raise ConfigError(f"the arm {children[-1]!r} is made from {name!r}, which has no seed {seed}")
            seed = seeds[0]
        if (name, seed, number) not in self.made:
            self.made[name, seed, number] = self._run(name, seed, number, children)
        return self.made[name, seed, number]

    def _run(self, name: str, seed: int, number: int, children: tuple[str, ...]) -> Run:
        arm, point = self.settings.arms[name], self.points[number]
        if arm.model:
            shape = (arm.recipe or {}).get("model")
            return Run(slug(arm.model), name, seed, point, Path(arm.model), None, shape=shape)
        shared = self.settings.recipe if arm.recipe is None else arm.recipe
        values = with_sections(copy.deepcopy(shared))
        if arm.recipe is None and any(setting.startswith("model.pretrained=") for setting in arm.settings):
            values.pop("model", None)  # the shape is that of the pretrained model
        values = with_sections(_with_settings(values, arm.settings))
        values = with_identified_code(with_overrides(values, point))
        parents = {
            setting: self._make(parent, seed, number, (*children, name)) for setting, parent in _named_parents(values)
        }
        values = with_overrides(values, {setting: parent.source for setting, parent in parents.items()})
        if self.corpus is not None and "synthetic" not in values["data"]:
            values["data"].setdefault("corpus", str(self.corpus))
        own = "".join(f"-{setting.rpartition('.')[-1]}{slug(str(value))}" for setting, value in point.items())
        if not any(setting.startswith("name=") for setting in arm.settings):
            values["name"] = f"{name}{own}"
        values["seed"] = seed
        made_from = tuple(parents.values())
        label = "-".join(part for part in (slug(self.prefix), f"{slug(name) or 'run'}{own}") if part)
        recipe = validate(Recipe, _stand_in(values, made_from), f"the run {name}")
        ids = {setting: parent.id for setting, parent in parents.items() if parent.values is not None}
        inputs = self._inputs(recipe, values, ids)
        run_id = f"{label}-s{seed}-{content_id(recipe, ids, inputs)}"
        folder = self.path / "runs" / run_id
        values["output"] = str(folder)
        return Run(run_id, name, seed, point, folder, values, made_from, inputs=inputs)

    def _inputs(self, recipe: Recipe, values: dict[str, Any], ids: dict[str, str]) -> dict[str, str]:
        """Content hashes of what a run starts from, as far as it exists; ``ids`` of the parents that are trained.

        Args:
            recipe: with a new model in place of a parent's.
            values: its recipe, with the parents' folders.
        """
        paths = corpus_paths(recipe.data).values() if isinstance(recipe.data, CorpusData) else ()
        if missing := [path for path in paths if not Path(path).exists()]:
            return {"missing": Path(missing[0]).name}
        pretrained = (values.get("model") or {}).get("pretrained")
        key = json.dumps([_read_by(recipe), pretrained, sorted(ids)])
        if key not in self.inputs:
            hashes = input_hashes(recipe, ids)
            if pretrained and "model.pretrained" not in {*ids, *hashes}:  # a model that an arm names
                with contextlib.suppress(CheckpointError):  # a plan may be of one that is not here
                    hashes["model.pretrained"] = start_digest(pretrained) or pretrained
            self.inputs[key] = hashes
        return self.inputs[key]


def _read_by(recipe: Recipe) -> str:
    """What :func:`input_hashes` reads of a recipe: the runs of a set that differ in other settings have the same inputs."""
    data = recipe.data.model_dump(mode="json", exclude={"context", "context_stages"})
    drawn = None if isinstance(recipe.data, CorpusData) else recipe.seed  # data that are drawn with the seed
    return json.dumps([data, recipe.model.starts, drawn])


def _named_parents(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The settings whose value is ``@NAME``, with the name."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _named_parents(value, f"{prefix}{key}.")
        elif isinstance(value, str) and value.startswith("@"):
            yield f"{prefix}{key}", value[1:]


def _with_settings(values: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Values with ``section.key=value`` settings applied; ``@NAME`` is no YAML and stays text."""
    parts = (setting.partition("=") for setting in settings)
    quoted = [
        f"{key}{equals}{json.dumps(text.strip()) if text.strip().startswith('@') else text}"
        for key, equals, text in parts
    ]
    return with_overrides(values, quoted)


def with_identified_code(recipe: dict[str, Any]) -> dict[str, Any]:
    """The values of a recipe with the SHA-256 of the Python file that its model names, if any: an edit makes another run."""
    model = recipe.get("model")
    if not isinstance(model, dict) or model.get("variant") is None:
        return recipe
    variant = validate(VariantSettings, model["variant"], "model.variant").model_dump()
    return {**recipe, "model": {**model, "variant": variant}}


def _stand_in(values: dict[str, Any], parents: tuple[Run, ...]) -> dict[str, Any]:
    """The values of a recipe, with a new model of the same size where it continues a parent's."""
    model = values.get("model") or {}
    parent = {parent.source: parent for parent in parents}.get(model.get("pretrained") or "")
    if parent is None or (parent.values is None and parent.shape is None):
        return values
    known = {"model": parent.shape} if parent.values is None else _stand_in(parent.values, parent.parents)
    own = {name: value for name, value in model.items() if name not in ("pretrained", "freeze_backbone")}
    return {**values, "model": {**(known.get("model") or {}), **own}}
