"""The points of a sweep: the best-context loss of every run at every step at which its context curve was measured.

Sweep pages draw these points and the planner fits them. A point is a model size, a training context and the cost so far, with
the loss reached. The runs of a sweep have a constant learning rate, so each point is the end of a smaller run (context scaling,
Section 3).
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from contextwise.base.errors import DataError
from contextwise.base.runs import RunFolder
from contextwise.experiments.grid import size_name
from contextwise.experiments.sweep import Sweep


@dataclass(frozen=True)
class SweepPoint:
    """The loss of one run at one of its measurements, and what was spent until then.

    Attributes:
        run: id of the run: the name of its folder.
        parameters: of the model, embeddings included.
        context: tokens of the training context.
        step, tokens, flops, seconds: spent on training when it was measured.
        loss: best-context loss, nats per token: the mean over the last 10% of the training context.
        standard_error: of ``loss`` over held-out documents; None where there is one document.
    """

    run: str
    size: str
    parameters: int
    context: int
    seed: int
    step: int
    tokens: int
    flops: float
    seconds: float
    loss: float
    standard_error: float | None


COLUMNS = [field.name for field in fields(SweepPoint)]


def run_points(path: Path) -> list[SweepPoint]:
    """Points of one run, finished or not, in the order of its steps; none if it measured no curve.

    Raises:
        CheckpointError: the folder holds no run.
        DataError: a measurement lacks a number.
    """
    run = RunFolder.open(path)
    recipe = run.recipe()
    rows = {_number(run, row, "step"): row for row in run.metrics("curve")}
    measured = ("parameters", "step", "tokens", "flops", "seconds")
    return [
        SweepPoint(
            run=path.name,
            size=size_name(recipe["model"]),
            context=recipe["data"]["context"],
            seed=recipe["seed"],
            loss=_number(run, row, "best_context_loss"),
            standard_error=row.get("standard_error"),
            **{name: _number(run, row, name) for name in measured},
        )
        for _, row in sorted(rows.items())
    ]


def _number(run: RunFolder, row: dict[str, Any], name: str) -> Any:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(
            f"{run.metrics_file} is damaged: {name} of the curve row of step {row.get('step')} is {value!r}, no number; "
            "remove the run and run the sweep again"
        )
    return value


def sweep_points(path: str | Path) -> list[SweepPoint]:
    """Points of every run of a sweep that has measured any, in the order of its grid.

    Unfinished and failed runs contribute the measurements they have; :meth:`Sweep.states` lists the state of each run.

    Raises:
        CheckpointError: the folder holds no sweep.
    """
    sweep = Sweep.open(path)
    folders = [sweep.run_folder(run.id) for run in sweep.plan]
    return [point for run in folders if run.recipe_file.exists() for point in run_points(run.path)]
