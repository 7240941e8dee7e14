"""A sweep: a run set with a grid, in a folder of its own.

It adds ``sweep.yaml`` (resolved) and ``plan.json`` (the runs and the corpus's hash) to the files of a run set
(:mod:`contextwise.experiments.folder`).
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path

import yaml

from contextwise.base.config import read_yaml, validate
from contextwise.base.errors import CheckpointError, ConfigError, ContextwiseError
from contextwise.base.files import atomic_write, read_json, write_json
from contextwise.base.progress import say
from contextwise.base.runs import differing_keys
from contextwise.data.corpus import Corpus
from contextwise.experiments.folder import PlannedRun
from contextwise.experiments.run_set import Run, RunSet, planned_run
from contextwise.experiments.sweep.settings import PLAN, RESOLVED, SweepRecipe
from contextwise.training.recipe import CorpusData


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
        """An existing sweep, whatever state it is in.

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
            ConfigError: runs that do not fit the corpus or each other, all in one message; the folder holds something else.
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
            first, *others = problems
            listed = "".join(f"\n  - {problem}" for problem in problems)
            raise ConfigError(f"the sweep has {len(problems)} problems: {listed}" if others else first)
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
        """Write settings, plan and the recipe of each run; a sweep that exists may only have gained runs.

        Raises:
            ConfigError: the folder holds another sweep, or files that are none.
        """
        assert self.settings is not None
        self.refuse_other(self.settings)
        super().write()
        resolved = yaml.safe_dump(self.settings.resolved(), sort_keys=False, allow_unicode=True)
        atomic_write(self.path / RESOLVED, resolved, "the sweep's recipe")
        runs = [asdict(run) for run in self.plan]
        write_json(self.path / PLAN, {"corpus": self.corpus, "runs": runs}, "the sweep's plan")

    def refuse_other(self, settings: SweepRecipe) -> None:
        """Refuse a folder that holds another sweep, or files that are none.

        Raises:
            ConfigError: naming what differs.
        """
        if not (self.path / PLAN).exists():
            if self.path.exists() and not self.path.is_dir():
                raise ConfigError(f"{self.path} is a file; choose another folder for the sweep with --out")
            allowed = {"recipes", RESOLVED}  # of a first call that was stopped early
            if self.path.exists() and any(
                not file.name.startswith(".") and file.name not in allowed for file in self.path.iterdir()
            ):
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
    axes: list[tuple[str, list[object]]] = [
        ("training context", [run.context for run in runs]),
        ("model size", [run.size for run in runs]),
    ]
    return [
        f"all runs have one {what} ({values[0]}): nothing can be compared along it"
        for what, values in axes
        if len(set(values)) == 1
    ]
