"""Trained models on the tasks of lm-evaluation-harness (ContextLM, Section 3.3, Tables 3 and 12).

The average is the plain mean of the tasks' accuracies, and its standard error over questions comes from theirs. That of a
difference assumes that the two models' errors are independent. They answer the same questions, so it is rather too large
than too small. With several seeds the t-interval over seeds is added in quadrature.

A claim is undecided where neither model's average is surely above chance: their difference then is one of guesses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from contextwise.base.config import validate
from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate
from contextwise.base.intervals import NORMAL, estimate_over_seeds
from contextwise.base.machine import hub_problem
from contextwise.base.progress import say
from contextwise.base.tables import Table
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.measures.lm_eval import HarnessTasks, check_installed
from contextwise.evaluation.measures.lm_eval.tables import ACCURACY_TASKS
from contextwise.reproductions.claims import Better, Claim, above, percentage_points, undecided
from contextwise.reproductions.item import Item, Outcome, registered
from contextwise.reproductions.trained_models import TrainedModels

CHANCE = {
    "lambada_openai": 0.0,
    "lambada_standard": 0.0,
    "arc_easy": 0.25,
    "arc_challenge": 0.25,
    "winogrande": 0.5,
    "piqa": 0.5,
    "hellaswag": 0.25,
    "sciq": 0.25,
    "race": 0.25,
}
"""Accuracy of guessing: one over the number of choices (ARC has a few questions with three or five)."""


@dataclass(frozen=True)
class Average:
    """A model's mean accuracy over tasks.

    Attributes:
        per_seed: (S,).
        error: standard error over questions; None where the harness gives none.
    """

    per_seed: np.ndarray
    error: float | None

    @property
    def value(self) -> float:
        return float(self.per_seed.mean())

    def minus(self, other: "Average") -> Estimate:
        """The difference, paired by seed, with its interval."""
        over_seeds = estimate_over_seeds(self.per_seed, other.per_seed, paired=True)
        if self.error is None or other.error is None:
            return Estimate(over_seeds.value)
        half = NORMAL * math.hypot(self.error, other.error)
        if over_seeds.high is not None:
            half = math.hypot(half, over_seeds.high - over_seeds.value)
        return Estimate(over_seeds.value, over_seeds.value - half, over_seeds.value + half)

    def surely_above(self, level: float) -> bool:
        """Whether the mean is above a level by more than the half-width of its interval over questions."""
        return self.error is not None and self.value - NORMAL * self.error > level


@registered("task_accuracy")
class TaskAccuracy(TrainedModels):
    """Accuracy of each model on each task, with each number of examples before the question."""

    tasks: list[str] = Field(list(ACCURACY_TASKS), min_length=1)
    shots: list[int] = Field([0, 5], min_length=1)
    task_data: Path | None = Field(
        None, description="a folder of local files, or a mapping file; not given: the Hub"
    )
    skip_missing: bool = Field(True, description="leave out the sets that the local files lack")
    limit: int | None = Field(
        None, ge=1, description="ask only the first so many questions of each task, all if not given"
    )

    def measure(self, item: Item, folder: Path) -> Outcome:
        tasks = self.harness_tasks()
        runs = self.train(folder)
        summaries = {
            name: [measure(run.path, tasks).summary for run in folders] for name, folders in runs.items()
        }
        first = next(iter(summaries.values()))[0]
        shots = [average["shots"] for average in first["averages"]]
        tables = [self._table(count, summaries) for count in shots]
        claims = [self._claim(claim, count, summaries) for count in shots for claim in self.claims]
        notes = [*first["notes"], *_gaps(first)]
        for note in notes:
            say(f"note: {note}")
        figures = {
            "tasks": {
                name: [{part: s[part] for part in ("rows", "averages")} for s in seeds]
                for name, seeds in summaries.items()
            },
            "notes": notes,
        }
        return Outcome(tables, claims, figures, [run.path for folders in runs.values() for run in folders])

    def harness_tasks(self) -> HarnessTasks:
        """The settings of the harness, checked before any training.

        Raises:
            ConfigError: the harness is not installed, or there is no such task.
            DataError: the tasks' data are missing.
        """
        check_installed()
        problem = hub_problem() if self.task_data is None else None
        if problem:
            raise DataError(
                f"no local files of the tasks are given, and {problem}; give a folder of them with --set task_data=FOLDER"
            )
        if self.task_data is not None and not self.task_data.exists():
            raise DataError(
                f"task_data is {self.task_data}, which does not exist; give a folder of the tasks' files with "
                "--set task_data=FOLDER"
            )
        settings = validate(
            HarnessTasks,
            {
                "tasks": self.tasks,
                "num_fewshot": self.shots,
                "task_data": self.task_data,
                "skip_missing": self.skip_missing,
                "limit": self.limit,
            },
            "the settings of the tasks",
        )
        settings.plan()
        return settings

    def _table(self, shots: int, summaries: dict[str, list[dict[str, Any]]]) -> Table:
        others = [name for name in self.models if name != self.reference]
        other = others[0] if len(others) == 1 else None
        first = next(iter(summaries.values()))[0]
        rows = []
        for task in tasks_of(first, shots):
            averages_of_task = {name: accuracy(seeds, shots, [task]) for name, seeds in summaries.items()}
            rows.append([task, _questions(row_of(first, shots, task)), *self._cells(averages_of_task, other)])
        averages = {name: average_of(seeds, shots) for name, seeds in summaries.items()}
        average = [f"Avg of {len(rows)}", "", *self._cells(averages, other)]
        lost = dict.fromkeys(gap["task"] for gap in first["missing"] if gap["shots"] == shots)
        missing = [[task, "missing", *[""] * (len(average) - 2)] for task in lost]
        change = [] if other is None else [f"{other} minus {self.reference}"]
        cut = any(" cut" in row[1] for row in rows)
        return Table(
            f"Accuracy, %, {shots} shots, ± one standard error over questions; {self.with_seeds}"
            + ("; cut: the beginning did not fit into the model's positions" if cut else ""),
            ["task", "questions", *summaries, *change],
            [*rows, *missing, average],
        )

    def _cells(self, averages: dict[str, Average], other: str | None) -> list[str]:
        cells = [_percent(average) for average in averages.values()]
        if other is not None:
            cells.append(
                percentage_points(averages[other].minus(averages[self.reference])).removesuffix(" points")
            )
        return cells

    def _claim(self, claim: Better, shots: int, summaries: dict[str, list[dict[str, Any]]]) -> Claim:
        better, than = (average_of(summaries[name], shots) for name in (claim.better, claim.than))
        tasks = tasks_of(summaries[claim.better][0], shots)
        difference, chance = better.minus(than), chance_of(tasks)
        verdict = above(difference)
        if chance is not None and not (better.surely_above(chance) or than.surely_above(chance)):
            verdict = undecided(f"neither model is surely above chance, {chance:.1%}")
        remark = "the interval is from the tasks' standard errors, not paired by question"
        if len(self.seeds) == 1:
            remark += ", and does not cover other seeds"
        names = f"{claim.better} minus {claim.than}, mean accuracy over {len(tasks)} tasks"
        return Claim.of(
            f"{claim.text}, {shots} shots", verdict, f"{names}: {percentage_points(difference)}; {remark}"
        )


def tasks_of(summary: dict[str, Any], shots: int) -> list[str]:
    """The tasks that have an accuracy at a number of shots."""
    return next(average["tasks"] for average in summary["averages"] if average["shots"] == shots)


def row_of(summary: dict[str, Any], shots: int, task: str) -> dict[str, Any]:
    """The summary's row of a task at a number of shots."""
    return next(row for row in summary["rows"] if row["shots"] == shots and row["task"] == task)


def accuracy(seeds: Sequence[dict[str, Any]], shots: int, tasks: Sequence[str]) -> Average:
    """The mean accuracy over tasks: of each seed, and its standard error over questions, which all seeds share."""
    measures = [[row_of(summary, shots, task)["measures"]["acc"] for task in tasks] for summary in seeds]
    values_ST = np.array([[measure["value"] for measure in seed] for seed in measures])
    errors = [[measure["stderr"] for measure in seed] for seed in measures]
    if any(error is None for seed in errors for error in seed):
        return Average(values_ST.mean(axis=1), None)
    per_seed = np.sqrt(np.square(np.array(errors)).sum(axis=1)) / len(tasks)
    return Average(values_ST.mean(axis=1), float(per_seed.mean()))


def average_of(seeds: Sequence[dict[str, Any]], shots: int) -> Average:
    """The mean accuracy over all tasks at a number of shots."""
    return accuracy(seeds, shots, tasks_of(seeds[0], shots))


def chance_of(tasks: Sequence[str]) -> float | None:
    """Mean accuracy of guessing; None where that of a task is not known."""
    return float(np.mean([CHANCE[task] for task in tasks])) if set(tasks) <= set(CHANCE) else None


def _questions(row: dict[str, Any]) -> str:
    """The number of questions, and of those whose beginning was cut off."""
    return f"{row['documents']:,}" + (f", {row['cut']:,} cut" if row["cut"] else "")


def _gaps(summary: dict[str, Any]) -> list[str]:
    """Notes on the sets that were left out because a file is missing."""
    by_shots: dict[int, list[str]] = {}
    for gap in summary["missing"]:
        by_shots.setdefault(gap["shots"], []).append(gap["file"])
    return [
        f"with {shots} shots these sets are missing and were left out: {', '.join(dict.fromkeys(files))}"
        for shots, files in by_shots.items()
    ]


def _percent(average: Average) -> str:
    return f"{100 * average.value:.1f}" + ("" if average.error is None else f" ± {100 * average.error:.1f}")
