"""A tiny sweep, and an executor that trains in the process of the test."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from contextwise.base.runs import RunFolder
from contextwise.experiments.executors import ExecutorSettings, LocalExecutor, Outcome, RunHere
from contextwise.experiments.folder import PlannedRun, RunSetFolder
from contextwise.training import load_recipe, train
from contextwise.training.checkpoints import list_checkpoints

TIMES = ("seconds", "tokens_per_second", "flops_per_second")
"""What differs between two runs of one recipe."""


def sweep_values(corpus: Path, output: Path, **changes: Any) -> dict[str, Any]:
    """Two runs of 12 steps with a one-layer Llama, at contexts of 16 and 32 tokens."""
    base = {
        "data": {"corpus": str(corpus)},
        "model": {"family": "llama", "layers": 1, "width": 16, "heads": 2},
        "training": {
            "schedule": "constant",
            "tokens_per_step": 128,
            "warmup_steps": 2,
            "curve_tokens": 512,
            "evaluation_tokens": 256,
            "log_every": 4,
            "save_every": 4,
        },
    }
    grid = {"data.context": [16, 32], "training.steps": [12]}
    return {"name": "tiny", "base": base, "grid": grid, "measurements": 4, "output": str(output)} | changes


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of metrics without what the clock says."""
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def long_enough(settings, steps=300):
    """Settings of a sweep whose runs last long enough to be hit."""
    base = settings().base
    base["training"] |= {"save_every": 10, "log_every": 50}
    return {"base": base, "grid": {"data.context": [16, 32], "training.steps": [steps]}}


def wait_for_checkpoint(run, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not list_checkpoints(RunFolder(run).checkpoints):
        assert time.monotonic() < deadline, f"no checkpoint in {run}"
        time.sleep(0.02)


def same_as_alone(sweep, run, folder):
    """Whether a run of a sweep has the weights and metrics that ``train`` gives alone."""
    alone = train(load_recipe(sweep.recipe_file(run), output=folder / run))
    swept = sweep.run_folder(run)
    weights = [load_file(run.model / "model.safetensors") for run in (alone, swept)]
    for kind in ("curve", "validation", "train"):
        assert timeless(alone.metrics(kind)) == timeless(swept.metrics(kind)) != []
    return all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


class InProcess(LocalExecutor):
    """Trains in the process of the test, the most expensive run first.

    Args:
        before: called with the run and the number of the attempt; what it raises is how the attempt fails.
    """

    def __init__(self, sweep: RunSetFolder, before: Callable[[PlannedRun, int], None] | None = None) -> None:
        super().__init__(sweep, ExecutorSettings())
        self.here, self.before, self.started = False, before, list[str]()

    def process(self, run: PlannedRun) -> RunHere:
        self.started.append(run.id)
        process, attempt, train = RunHere(self.folder, run.id), self.started.count(run.id), RunHere.train

        def begin() -> None:
            if self.before is not None:
                self.before(run, attempt)
            train(process)

        process.train = begin
        return process

    def poll(self) -> list[tuple[PlannedRun, Outcome]]:
        return [(run, replace(outcome, error=None)) for run, outcome in super().poll()]
