"""The folder of a sweep.

``sweep.yaml`` (resolved) · ``plan.json`` (the runs, what each costs, the corpus) · ``recipes/<id>.yaml`` · ``runs/<id>/``
(ordinary run folders) · ``logs/<id>.log`` · ``failures/<id>.json`` (why a run failed; gone when it finishes)
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from contextwise.base.config import read_yaml, validate
from contextwise.base.errors import CheckpointError, ConfigError
from contextwise.base.files import atomic_write, read_json, write_json
from contextwise.base.runs import RunFolder, differing_keys
from contextwise.sweeps.grid import PLAN, RESOLVED, SweepRecipe
from contextwise.training.recipe import Recipe

State = Literal["finished", "unfinished", "failed", "missing"]
STATES: tuple[State, ...] = ("finished", "unfinished", "failed", "missing")


@dataclass(frozen=True)
class PlannedRun:
    """A run of the grid.

    Attributes:
        id: names its folder.
        size: name of the model size.
        parameters: of the model, embeddings included.
        context: tokens of the training context.
        tokens, steps: of the whole run.
        flops: of its training, without measuring.
    """

    id: str
    size: str
    parameters: int
    context: int
    tokens: int
    steps: int
    seed: int
    learning_rate: float
    flops: float


@dataclass(frozen=True)
class Failure:
    """Why a run failed, and how often it was tried."""

    reason: str
    attempts: int


@dataclass(frozen=True)
class RunState:
    """How far a run is.

    Attributes:
        step, tokens_per_second: at its newest row of metrics; None before the first.
        loss: newest best-context loss, nats per token; None before the first.
        failure: of a failed run.
    """

    run: PlannedRun
    state: State
    step: int | None = None
    tokens_per_second: float | None = None
    loss: float | None = None
    failure: Failure | None = None

    @property
    def share(self) -> float:
        """How much of the run is done, 0 to 1."""
        return 1.0 if self.state == "finished" else min(1.0, (self.step or 0) / self.run.steps)


class Sweep:
    """A sweep on disk.

    Attributes:
        path: its folder.
        plan: the runs of the grid, in its order.
        corpus: content hash of what they are trained on.
    """

    def __init__(self, path: Path, plan: list[PlannedRun], corpus: str) -> None:
        self.path, self.plan, self.corpus = path, plan, corpus

    @classmethod
    def open(cls, path: str | Path) -> "Sweep":
        """An existing sweep, whatever state it is in.

        Raises:
            CheckpointError: the folder is not there, or holds no sweep.
        """
        path = Path(path)
        if not (path / PLAN).exists():
            raise CheckpointError(f"{path} is not a sweep: it has no {PLAN}")
        data = read_json(path / PLAN, "the sweep's plan")
        known = {field.name for field in fields(PlannedRun)}
        try:
            runs = [PlannedRun(**{k: v for k, v in run.items() if k in known}) for run in data["runs"]]
            return cls(path, runs, data["corpus"])
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path / PLAN} is damaged: {error}") from None

    @classmethod
    def claim(
        cls, settings: SweepRecipe, recipes: dict[str, Recipe], plan: list[PlannedRun], corpus: str
    ) -> "Sweep":
        """Make ``settings.folder`` this sweep; one that is there already may only have gained runs.

        Raises:
            ConfigError: the folder holds another sweep, or files that are none.
        """
        sweep = cls(settings.folder, plan, corpus)
        sweep.refuse_other(settings)
        for name, recipe in recipes.items():
            text = yaml.safe_dump(recipe.resolved(), sort_keys=False, allow_unicode=True)
            file = sweep.recipe_file(name)
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                atomic_write(file, text, "a run's recipe")
        resolved = yaml.safe_dump(settings.resolved(), sort_keys=False, allow_unicode=True)
        atomic_write(sweep.path / RESOLVED, resolved, "the sweep's recipe")
        runs = [asdict(run) for run in plan]
        write_json(sweep.path / PLAN, {"corpus": corpus, "runs": runs}, "the sweep's plan")
        return sweep

    def refuse_other(self, settings: SweepRecipe) -> None:
        """Refuse a folder that holds another sweep, or files that are none.

        Raises:
            ConfigError: naming what differs.
        """
        if not (self.path / PLAN).exists():
            if self.path.exists() and not self.path.is_dir():
                raise ConfigError(f"{self.path} is a file; choose another folder for the sweep with --out")
            allowed = {"recipes", RESOLVED}  # a first call that was cut off had got so far
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

    def recipe_file(self, run: str) -> Path:
        return self.path / "recipes" / f"{run}.yaml"

    def log_file(self, run: str) -> Path:
        return self.path / "logs" / f"{run}.log"

    def run_folder(self, run: str) -> RunFolder:
        return RunFolder(self.path / "runs" / run)

    @property
    def flops(self) -> float:
        """Of all runs' training."""
        return sum(run.flops for run in self.plan)

    def failure(self, run: str) -> Failure | None:
        """Why a run failed; None if it did not."""
        file = self.path / "failures" / f"{run}.json"
        return Failure(**read_json(file, "a run's failure")) if file.exists() else None

    def note_failure(self, run: str, reason: str) -> None:
        """A run failed, once more."""
        before = self.failure(run)
        failure = Failure(reason, before.attempts + 1 if before else 1)
        write_json(self.path / "failures" / f"{run}.json", asdict(failure), "a run's failure")

    def clear_failure(self, run: str) -> None:
        """A run that failed before has finished."""
        (self.path / "failures" / f"{run}.json").unlink(missing_ok=True)

    def states(self) -> list[RunState]:
        """Every run of the grid with its state, in the grid's order."""
        return [self.state(run) for run in self.plan]

    def state(self, run: PlannedRun) -> RunState:
        """How far a run is."""
        folder = self.run_folder(run.id)
        newest: dict[str, dict[str, Any]] = {row.get("kind", ""): row for row in folder.metrics()}
        failure = None if folder.finished else self.failure(run.id)
        state: State = "missing"
        if folder.finished:
            state = "finished"
        elif failure is not None:
            state = "failed"
        elif folder.recipe_file.exists():
            state = "unfinished"
        return RunState(
            run,
            state,
            max((row["step"] for row in newest.values()), default=None),
            newest.get("train", {}).get("tokens_per_second"),
            newest.get("contextwise", {}).get("best_context_loss"),
            failure,
        )

    def count(self) -> dict[State, int]:
        """How many runs are in each state."""
        found = [state.state for state in self.states()]
        return {state: found.count(state) for state in STATES}
