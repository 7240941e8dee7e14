"""The folder of a run set: its runs, the cost of each, and their states.

``runs/<id>/`` (ordinary run folders) · ``recipes/<id>.yaml`` · ``logs/<id>.log`` (of a run in a process of its own, or that
failed) · ``failures/<id>.json`` (why a run failed; removed when it finishes).
"""

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import yaml

from contextwise.base.config import Model, read_yaml, validate
from contextwise.base.errors import ConfigError
from contextwise.base.files import PARTIAL, atomic_write, read_sealed_json, write_sealed_json
from contextwise.base.recipes import recipe_kinds, recipe_path
from contextwise.base.runs import RunFolder

State = Literal["finished", "unfinished", "failed", "missing"]


@dataclass(frozen=True)
class PlannedRun:
    """A run, whose ``id`` names its folder, and the cost of its training, computed without starting it.

    ``tokens`` and ``flops`` count the whole run with its trunk, which trains ``trunk_tokens`` of the tokens.
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
    trunk_tokens: int = 0

    @property
    def own_flops(self) -> float:
        """FLOPs of its training without those of its trunk."""
        return self.flops * (1 - self.trunk_tokens / self.tokens)


@dataclass(frozen=True)
class RunState:
    """The state of a run, with the last step and best-context loss (nats per token) that were logged; None if none was.

    ``failure``: why it failed.
    """

    run: PlannedRun
    state: State
    step: int | None = None
    loss: float | None = None
    failure: str | None = None

    @property
    def share(self) -> float:
        """How much of the run is done, 0 to 1; of a branch, without what its trunk trains."""
        trunk = self.run.trunk_tokens / self.run.tokens
        done = ((self.step or 0) / self.run.steps - trunk) / (1 - trunk)
        return 1.0 if self.state == "finished" else min(1.0, max(0.0, done))


@dataclass(frozen=True)
class Question:
    """What the runs in a folder are for: settings in ``<kind>.yaml``, and what was planned of them in ``plan.json``.

    A folder has settings only if it has the plan of these settings.
    """

    path: Path
    kind: str

    PLAN: ClassVar = "plan.json"

    @property
    def settings_file(self) -> Path:
        return self.path / f"{self.kind}.yaml"

    @property
    def exists(self) -> bool:
        """Whether the folder holds a question; a ConfigError if it is a file, or holds something else."""
        path, what = self.path, self.kind
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file; choose another folder for the {what} with --out")
        if self.settings_file.exists() and (path / self.PLAN).exists():
            return True
        # A first call that was interrupted leaves these; a process that times steps keeps its dry runs in `runs`.
        names = _files_in(path) - {self.PLAN, self.settings_file.name, "recipes"}
        if names - {"runs"} or any(PARTIAL not in name for name in _files_in(path / "runs")):
            raise ConfigError(f"{path} is not empty and holds no {what}; choose another folder with --out")
        return False

    def settings(self, form: type[Model]) -> Model:
        """The settings in the folder."""
        return validate(form, read_yaml(self.settings_file), f"the {self.kind} {self.path}")

    def plan(self) -> dict[str, Any]:
        """The plan."""
        mend = f"begin the {self.kind} in another folder"
        return read_sealed_json(self.path / self.PLAN, f"the {self.kind}'s plan", mend)

    def write(self, settings: dict[str, Any], plan: dict[str, Any]) -> None:
        """Write the plan, then the settings."""
        write_sealed_json(self.path / self.PLAN, plan, f"the {self.kind}'s plan")
        text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
        atomic_write(self.settings_file, text, f"the {self.kind}")

    @classmethod
    def read_file(cls, name: str | Path, kind: str) -> tuple[dict[str, Any], Path]:
        """The values of a settings file of this kind, which may lie in its own folder; and the folder that it lies in."""
        path = recipe_path(name, recipe_kinds()[kind].verb)
        data = {"name": path.stem} | read_yaml(path)
        own = cls(path.parent, kind)
        if path == own.settings_file and (path.parent / cls.PLAN).exists():
            data["output"] = str(path.parent)
        return data, path.parent


def _files_in(folder: Path) -> set[str]:
    """Names of the files and folders in a folder, without hidden ones; empty if there is none."""
    try:
        return {file.name for file in folder.iterdir() if not file.name.startswith(".")}
    except (FileNotFoundError, NotADirectoryError):
        return set()


class RunSetFolder:
    """A run set on disk."""

    path: Path
    plan: list[PlannedRun]
    status_command: str = ""  # lists the runs and why some failed
    beginnings: dict[str, dict[str, Path | None]]

    def may_start(self, run: str, unfinished: Container[str]) -> bool:
        """Whether all parents of a run have finished; of its trunk, the checkpoint where it begins is enough."""
        beginnings = self.beginnings.get(run, {}).items()
        return all(parent not in unfinished or (path is not None and path.exists()) for parent, path in beginnings)

    def recipe_file(self, run: str) -> Path:
        return self.path / "recipes" / f"{run}.yaml"

    def log_file(self, run: str) -> Path:
        return self.path / "logs" / f"{run}.log"

    def run_folder(self, run: str) -> RunFolder:
        return RunFolder(self.path / "runs" / run)

    @property
    def flops(self) -> float:
        """FLOPs of the training of all runs; those of a trunk count once."""
        return sum(run.own_flops for run in self.plan)

    @property
    def tokens(self) -> int:
        """Tokens of the training of all runs, those of a trunk once."""
        return sum(run.tokens - run.trunk_tokens for run in self.plan)

    def failure(self, run: str) -> str | None:
        """Why a run failed; None if it did not."""
        file = self.path / "failures" / f"{run}.json"
        return read_sealed_json(file, "a run's failure")["reason"] if file.exists() else None

    def note_failure(self, run: str, reason: str) -> None:
        """Record that a run failed."""
        write_sealed_json(self.path / "failures" / f"{run}.json", {"reason": reason}, "a run's failure")

    def clear_failure(self, run: str) -> None:
        (self.path / "failures" / f"{run}.json").unlink(missing_ok=True)

    def states(self) -> list[RunState]:
        """In the order of the plan."""
        return [self.state(run) for run in self.plan]

    def state(self, run: PlannedRun) -> RunState:
        folder = self.run_folder(run.id)
        newest: dict[str, dict[str, Any]] = {row["kind"]: row for row in folder.metrics()}
        failure = None if folder.finished else self.failure(run.id)
        state: State = "unfinished" if folder.recipe_file.exists() else "missing"
        if folder.finished or failure:
            state = "finished" if folder.finished else "failed"
        step = max((row["step"] for row in newest.values()), default=None)
        loss = newest.get("curve", {}).get("best_context_loss")
        return RunState(run, state, step, loss, failure)

    def count(self) -> dict[State, int]:
        """How many runs are in each state."""
        states = [state.state for state in self.states()]
        return {state: states.count(state) for state in get_args(State)}
