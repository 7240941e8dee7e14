"""A sweep on disk: a run set with a grid, which adds ``sweep.yaml`` (resolved) and ``plan.json`` to its files."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from contextwise.base.errors import misspelt
from contextwise.base.runs import differing_keys
from contextwise.base.schemas import built
from contextwise.base.tables import Cell
from contextwise.experiments.run_set import planned_run
from contextwise.report import Column, Table, counted, listed, say
from contextwise.runset import PlannedRun, Question, Run, RunSet, RunState
from contextwise.settings import CheckpointError, ConfigError, ContextwiseError
from contextwise.training import CorpusData, Recipe
from contextwise.training.identity import input_hashes
from contextwise.training.recipe import few_steps
from contextwise_plan.sweeps.recipe import COMPUTE, SweepRecipe, cell_name

if TYPE_CHECKING:
    from contextwise.runset import RunCost

UNEQUAL = 0.02  # runs whose FLOPs differ by a larger share from their budget, since they are whole steps, have a note
FEWEST_CONTEXTS = 4  # that ``plan budget`` needs


class Sweep(RunSet):
    """A sweep on disk, or one that is planned.

    Attributes:
        plan: the runs of the grid, in its order.
        inputs: content hashes of all that the runs start from.
        settings: of a sweep that is planned; None for one that was opened.
    """

    def __init__(
        self,
        path: Path,
        plan: list[PlannedRun],
        inputs: dict[str, str],
        runs: Iterable[Run] = (),
        settings: SweepRecipe | None = None,
    ) -> None:
        super().__init__(path, list(runs))
        self.folder = Question(path, "sweep")
        self.name = path.name if settings is None else settings.name
        self.status_command = f"contextwise plan sweep --status {path}"
        self.plan, self.inputs, self.settings = plan, inputs, settings

    @classmethod
    def open(cls, path: str | Path) -> "Sweep":
        """Open an existing sweep, finished or not.

        Raises:
            CheckpointError: the folder does not exist, or holds no sweep.
        """
        file = Path(path) / Question.PLAN
        if not file.exists():
            if not Path(path).exists():
                raise CheckpointError(f"there is no sweep at {path}{misspelt(path)}")
            raise CheckpointError(f"{path} is not a sweep: it has no {file.name}")
        data = Question(Path(path), "sweep").plan()
        plan = [built(PlannedRun, run) for run in data["runs"]]
        return cls(Path(path), plan, data["inputs"])

    @property
    def corpus(self) -> str:
        """Content hash of the training data."""
        return self.inputs.get("train", "")

    @classmethod
    def planned(cls, settings: SweepRecipe) -> "Sweep":
        """The sweep of these settings, every run checked against the corpus; nothing is written.

        Raises:
            ConfigError: runs do not fit the corpus or each other (all in one message); the folder holds something else.
            DataError: there is no such corpus.
        """
        cells = {cell_name(recipe): recipe for recipe in settings.recipes().values()}
        costs, inputs = _cell_costs(cells)
        # Of a step of the full size.
        step_costs = {name: cost.flops / cost.tokens * cells[name].tokens_per_step for name, cost in costs.items()}
        runs = grid_runs(settings, step_costs if settings.values(COMPUTE) else None)
        recipes = [(run, run.recipe()) for run in runs]
        plan = [planned_run(run, recipe, costs[cell_name(recipe)]) for run, recipe in recipes]
        runs.sort(key=lambda run: len(run.parents))
        sweep = cls(settings.folder, plan, inputs, runs, settings)
        sweep.refuse_other()
        return sweep

    def seconds_left(self) -> float:
        """Seconds that the training of the missing runs takes, from a few steps of one context of each size, timed now."""
        from contextwise.experiments.cost import seconds_per_step

        assert self.settings is not None
        cells = {cell_name(recipe): recipe for recipe in self.settings.recipes().values()}
        chosen = {size: f"{size}-c{contexts[len(contexts) // 2]}" for size, contexts in self.contexts.items()}
        say(f"timing a few steps of {listed(list(chosen.values()))}")
        timed = seconds_per_step({name: cells[name] for name in chosen.values()}, 1, self.settings.executor)
        per_flop = {
            run.size: timed[chosen[run.size]] / (run.flops / run.tokens * cells[chosen[run.size]].tokens_per_step)
            for run in self.plan
            if f"{run.size}-c{run.context}" == chosen[run.size]
        }
        left = sum(state.run.own_flops * (1 - state.share) * per_flop[state.run.size] for state in self.states())
        return left / self.settings.executor.jobs

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
    def notes(self) -> list[str]:
        """Notes on what no plan can be made of, or is not quite equal."""
        contexts = {run.context for run in self.plan}
        notes = [note for note in [few_steps(run.steps for run in self.plan)] if note]
        if len(contexts) < FEWEST_CONTEXTS:
            notes.append(
                f"the grid has {counted(len(contexts), 'training context')}, and contextwise plan budget needs "
                f"{FEWEST_CONTEXTS} at least; add contexts for a plan"
            )
        budgets = [] if self.settings is None else self.settings.values(COMPUTE)
        off = [min(abs(run.flops / float(budget) - 1) for budget in budgets) for run in self.plan if budgets]
        if (unequal := max(off, default=0.0)) > UNEQUAL:
            notes.append(
                f"runs are whole steps, so the FLOPs of some differ from their budget by up to {unequal:.1%}; larger budgets "
                "or a smaller base.training.tokens_per_step are closer"
            )
        return notes

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        for note in self.notes:
            say(f"note: {note}")
        with super().claimed():
            if self.folder.exists:
                # While this one waited, a process that held the folder may have trained a trunk beyond where a branch begins.
                assert self.settings is not None
                again = Sweep.planned(self.settings)
                self.runs, self.plan = again.runs, again.plan
            self.write()
            yield

    def write(self) -> None:
        """Write plan, settings and the recipe of each run; a sweep that exists may only have gained runs."""
        assert self.settings is not None
        self.refuse_other()
        super().write()
        plan = {"inputs": self.inputs, "runs": [asdict(run) for run in self.plan]}
        self.folder.write(self.settings.resolved(), plan)

    def refuse_other(self) -> None:
        """Refuse a folder that holds another sweep, or other files; the error names what differs."""
        if not self.folder.exists:
            return
        assert self.settings is not None
        kept = Sweep.open(self.path)
        changed = [name for name, digest in kept.inputs.items() if self.inputs.get(name) != digest]
        if changed:
            what = "the corpus" if {"train", "loss"} & {*changed} else listed(changed)
            raise ConfigError(
                f"{what} is not the one that the sweep {self.path} was begun with (its content hash differs); put that one "
                "back, or choose another folder with --out"
            )
        lost = {run.id for run in kept.plan} - {run.id for run in self.plan}
        if lost:
            different = differing_keys(self.folder.settings(SweepRecipe).resolved(), self.settings.resolved())
            named = sorted(n for n in different if not n.startswith("executor") and n != "name")
            what = ", ".join(named[:6]) or "defaults of its runs' recipe"
            raise ConfigError(
                f"{self.path} holds another sweep (it differs in {what}; {len(lost)} of its runs are not in this one): choose "
                "another folder with --out; a grid may gain runs, but those that are there must stay as they are"
            )


def grid_runs(settings: SweepRecipe, step_costs: Mapping[str, float] | None = None) -> list[Run]:
    """The runs of a sweep's grid, in its order; ``step_costs`` as for :meth:`SweepRecipe.recipes`.

    Paths in recipes are absolute, since a run may start on another machine, in another folder.
    """
    runs: dict[str, Run] = {}
    recipes = settings.recipes(step_costs)
    for name, recipe in recipes.items():
        assert isinstance(recipe.data, CorpusData)
        data = recipe.data.model_copy(update={"corpus": str(Path(recipe.data.corpus).absolute())})
        folder = settings.folder / "runs" / name
        values = recipe.model_copy(update={"data": data}).resolved() | {"output": str(folder)}
        runs[name] = Run(name, settings.name, recipe.seed, {}, folder, values)
    for name, recipe in recipes.items():
        if recipe.training.trunk is not None:
            runs[name] = replace(runs[name], parents=(runs[Path(recipe.training.trunk).name],))
    return list(runs.values())


def _cell_costs(cells: dict[str, Recipe]) -> tuple[dict[str, "RunCost"], dict[str, str]]:
    """The cost of each cell's run, and the content hashes of what all start from; a ConfigError for all that do not fit."""
    from contextwise.runset import cost_of

    problems: dict[str, None] = {}
    costs: dict[str, RunCost] = {}
    inputs: dict[str, str] = {}
    for name, recipe in cells.items():
        assert isinstance(recipe.data, CorpusData)
        try:
            inputs = inputs or input_hashes(recipe)
            costs[name] = cost_of(recipe)
        except ContextwiseError as error:
            problems[str(error)] = None
    if problems:
        raise ConfigError(*problems, where="the sweep" if len(problems) > 1 else "")
    return costs, inputs


def run_sweep(settings: SweepRecipe) -> Sweep:
    """Train a sweep to its end, or resume it; raises what :meth:`Sweep.planned` and :meth:`RunSet.train_missing` raise."""
    sweep = Sweep.planned(settings)
    sweep.train_missing(settings.executor)
    return sweep


def plan_table(states: Sequence[RunState]) -> Table:
    """A table of the runs with what each is, what it costs, and how far it is."""
    rows: list[list[Cell]] = []
    for state in states:
        run, done = state.run, "failed" if state.state == "failed" else f"{state.share:.0%}"
        rows.append([run.id, run.parameters, run.learning_rate, run.tokens, run.flops, done, state.loss])
    columns = [Column("run"), Column("params", "count"), Column("lr", "estimate", ".2g"), Column("tokens", "count")]
    columns += [Column("FLOPs", "estimate", ".2e"), Column("done"), Column("loss", "estimate", ".4f")]
    return Table("", columns, rows)
