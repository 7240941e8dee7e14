"""The points of a sweep: a model size, a training context, what was spent, and the best-context loss that it gave.

Sweep pages draw these points and the planner fits them. A point is the end of a run: of a finished one, whose learning rate has
decayed, or, at a constant rate, of a smaller run that each measurement along the way stands for (context scaling, Section 3).
"""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from contextwise.base.runs import RunFolder
from contextwise.base.schemas import Count, Number, OneOrMore, Positive, matching
from contextwise.runset import size_name
from contextwise.settings import DataError
from contextwise_plan.sweeps.sweep import Sweep


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
        document_ids: of the held-out documents, their indices in the corpus; empty if not known.
        document_nats, document_targets: sums of the loss over each of them, and their targets; empty if not known.
    """

    run: str
    size: str
    parameters: OneOrMore
    context: OneOrMore
    seed: int
    step: Count
    tokens: OneOrMore
    flops: Positive
    seconds: Positive
    loss: Positive
    standard_error: float | None
    document_ids: tuple[Count, ...] = field(default=(), repr=False)
    document_nats: tuple[Number, ...] = field(default=(), repr=False)
    document_targets: tuple[Count, ...] = field(default=(), repr=False)

    @property
    def cell(self) -> tuple[str, int, int]:
        """Size, context and seed: its points differ in what was spent."""
        return self.size, self.context, self.seed


class DataOfPoint(BaseModel):
    """What a point has of the section ``data``."""

    context: OneOrMore


class RecipeOfPoint(BaseModel):
    """What a point has of the recipe of its run."""

    model: dict[str, Any]
    data: DataOfPoint
    seed: int


PER_DOCUMENT = ("document_ids", "document_nats", "document_targets")
COLUMNS = [column.name for column in fields(SweepPoint) if column.name not in PER_DOCUMENT]  # of a table of points


def run_points(path: Path, ends: bool = False) -> list[SweepPoint]:
    """Measurements of one run, finished or not, in the order of its steps; none if it measured no curve.

    Args:
        ends: only those that are ends of runs: all at a constant rate, else the last one of a finished run.

    Raises:
        CheckpointError: the folder holds no run, or a row is damaged.
    """
    run = RunFolder.open(path)
    recipe = run.recipe()
    try:
        matching(RecipeOfPoint, recipe)
    except ValueError as error:
        raise DataError(f"the recipe of the run {run.recipe_file} is damaged: {error}") from None
    constant = recipe.get("training", {}).get("schedule", "constant") == "constant"
    rows = {row["step"]: row for row in run.metrics("curve")}
    steps = sorted(rows)
    if ends and not constant:
        steps = steps[-1:] if run.finished else []
    points = []
    for row in map(rows.__getitem__, steps):
        values: dict[str, Any] = {name: row[name] for name in ("parameters", "step", "tokens", "flops", "seconds")}
        values |= {name: tuple(row.get(name, ())) for name in PER_DOCUMENT}
        values |= {"size": size_name(recipe["model"]), "context": recipe["data"]["context"], "seed": recipe["seed"]}
        loss = math.nan if row["best_context_loss"] is None else row["best_context_loss"]
        points.append(SweepPoint(path.name, loss=loss, standard_error=row["standard_error"], **values))
    return points


def sweep_points(path: str | Path) -> list[SweepPoint]:
    """Points of every run of a sweep that has any, in the order of its grid.

    At a constant rate unfinished and failed runs contribute the measurements they have; :meth:`Sweep.states` lists the state of
    each run.

    Raises:
        CheckpointError: the folder holds no sweep.
        DataError: a run was trained on another corpus.
    """
    return [point for run in sweep_folders(Sweep.open(path)) for point in run_points(run.path, ends=True)]


def sweep_folders(sweep: Sweep) -> list[RunFolder]:
    """The runs of a sweep that have begun, in the order of its grid; a DataError if one was trained on another corpus."""
    begun = [run for each in sweep.plan if (run := sweep.run_folder(each.id)).recipe_file.exists()]
    for run in begun:
        known = run.summary()["corpus"]["fingerprint"] if run.finished else sweep.corpus
        if known != sweep.corpus:
            raise DataError(
                f"the run {run.path} was trained on another corpus than the sweep {sweep.path} (their content hashes differ), "
                "and a sweep is of one; remove the run and run the sweep again"
            )
    return begun
