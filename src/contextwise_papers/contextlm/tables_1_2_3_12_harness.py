"""Trained models on the texts and tasks of lm-evaluation-harness (ContextLM, Tables 1, 2, 3, 6, 9, 11 and 12).

The average perplexity is the plain mean of the corpus's per token, WikiText's per word and LAMBADA's per last word, as in the
document; LAMBADA's, the largest by far, decides it. The average accuracy is the plain mean over tasks; a claim about it is
undecided where neither model is significantly above chance: their difference is then one between guesses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from contextwise.base.estimates import FEWEST_DOCUMENTS
from contextwise.base.runs import RunFolder
from contextwise.report import Table, say
from contextwise.stats import NORMAL, Estimate, plus_minus, with_seeds
from contextwise_evals.harness import HarnessTasks, check_installed
from contextwise_papers.claims import Better, Claim, above, percentage_points, undecided
from contextwise_papers.item import Item, Outcome
from contextwise_papers.models import TrainedModels, measured_by_model, paths_of
from contextwise_papers.tables import table_of

ACCURACY_TASKS: tuple[str, ...] = ("lambada_openai", "arc_easy", "lambada_standard", "arc_challenge")
ACCURACY_TASKS += ("winogrande", "piqa", "hellaswag", "sciq", "race")
"""The nine tasks of Tables 3 and 12; their average is the plain mean of ``acc``."""
PERPLEXITIES = ("word_perplexity", "perplexity")
TEXTS = ("wikitext", "lambada_openai", "lambada_standard")
CHANCE = dict.fromkeys(("lambada_openai", "lambada_standard"), 0.0)
CHANCE |= dict.fromkeys(("arc_easy", "arc_challenge", "hellaswag", "sciq", "race"), 0.25)
CHANCE |= dict.fromkeys(("winogrande", "piqa"), 0.5)
"""Accuracy of guessing: one over the number of choices (ARC has a few questions with three or five)."""

Summaries = dict[str, list[dict[str, Any]]]
"""Model -> the harness's summary of each seed's run."""


class OnHarness(TrainedModels):
    """Models measured by the harness."""

    include_path: Path | None = Field(
        default=None, description="a folder of the tasks' definitions; else the Hub's data"
    )
    limit: int | None = Field(default=None, ge=1, description="of the questions or texts of each task, the first ones")

    def harness_tasks(self, tasks: list[str], shots: list[int]) -> HarnessTasks:
        """The settings of the harness and the files that they need, checked before any training."""
        check_installed()
        settings = self.settings_of(HarnessTasks, "include_path", "limit", tasks=tasks, num_fewshot=shots)
        settings.plan()
        return settings

    def summaries(self, runs: dict[str, list[RunFolder]], tasks: HarnessTasks) -> Summaries:
        """Measure every run with the harness."""
        measured = measured_by_model(runs, tasks)
        return {name: [result.summary for result in results] for name, results in measured.items()}


class TextPerplexity(OnHarness, name="text_perplexity"):
    """Models on a corpus, and, where their data are given, on the harness's texts."""

    texts: list[str] = Field(default=list(TEXTS), min_length=1, description="the harness's tasks with a perplexity")

    def measure(self, item: Item, folder: Path) -> Outcome:
        texts = None if self.include_path is None else self.harness_tasks(self.texts, [0])
        outcome = super().measure(item, folder)
        if texts is None:
            say("note: WikiText and LAMBADA are not measured; give their definitions with --set include_path=FOLDER")
            return outcome
        summaries = self.summaries(self.trained(folder), texts)
        groups = outcome.figures["comparison"]["groups"]
        own = {group["name"]: group["perplexity"]["value"] for group in groups}
        perplexities = {name: {"corpus": own[name], **_of_texts(s)} for name, s in summaries.items()}
        outcome.tables.append(_perplexity_table(perplexities))
        outcome.figures["texts"] = perplexities
        return outcome


def _of_texts(seeds: list[dict[str, Any]]) -> dict[str, float]:
    """Perplexity on each text that was measured, mean over seeds."""
    perplexities = {}
    for task in dict.fromkeys(row["task"] for row in seeds[0]["rows"]):
        rows = [row_of(summary, 0, task)["measures"] for summary in seeds]
        key = next(name for name in PERPLEXITIES if name in rows[0])
        perplexities[task] = float(np.mean([row[key]["value"] for row in rows]))
    return perplexities


def _perplexity_table(perplexities: dict[str, dict[str, float]]) -> Table:
    texts = list(next(iter(perplexities.values())))
    average = "average" if set(texts) == {"corpus", *TEXTS} else f"average of {len(texts)}"
    return table_of(
        "Perplexities: the corpus's per token, WikiText's per word, LAMBADA's per last word",
        ["model", *((name.replace("_", " "), ".5g") for name in [*texts, average])],
        [[name, *values.values(), np.mean(list(values.values()))] for name, values in perplexities.items()],
    )


@dataclass(frozen=True)
class Average:
    """A model's mean accuracy over tasks, (S,), and its standard error over questions, if there are several.

    ``right``: (S, Q) of each task, 1 where a question was answered right, else 0.
    """

    per_seed: np.ndarray
    error: float | None
    right: list[np.ndarray]

    @property
    def value(self) -> float:
        return float(self.per_seed.mean())

    @property
    def questions(self) -> int:
        """The fewest of a task."""
        return min(right.shape[1] for right in self.right)

    def minus(self, other: "Average") -> Estimate:
        """The difference, paired by seed and by question, with its interval."""
        differences_S = self.per_seed - other.per_seed
        value = float(differences_S.mean())
        if self.error is None or other.error is None:
            return Estimate(value)
        of_tasks = [(ours - theirs).mean(axis=0) for ours, theirs in zip(self.right, other.right, strict=True)]
        error = math.sqrt(sum(of_task_Q.var(ddof=1) / len(of_task_Q) for of_task_Q in of_tasks)) / len(of_tasks)
        over_questions = plus_minus(value, NORMAL * error, documents=self.questions, freedom=math.inf)
        return with_seeds(over_questions, differences_S)

    def surely_above(self, level: float) -> bool:
        """Whether the mean is above a level by more than the half-width of its interval over questions, six or more."""
        enough = self.questions >= FEWEST_DOCUMENTS
        return enough and self.error is not None and self.value - NORMAL * self.error > level

    def percent(self) -> str:
        return f"{100 * self.value:.1f}" + ("" if self.error is None else f" ± {100 * self.error:.1f}")


class TaskAccuracy(OnHarness, name="task_accuracy"):
    """Accuracy of each model on each task, with each number of examples before the question."""

    tasks: list[str] = Field(default=list(ACCURACY_TASKS), min_length=1)
    shots: list[int] = Field(default=[0, 5], min_length=1)

    def measure(self, item: Item, folder: Path) -> Outcome:
        tasks = self.harness_tasks(self.tasks, self.shots)
        runs = self.trained(folder)
        summaries = self.summaries(runs, tasks)
        first = next(iter(summaries.values()))[0]
        shots = [average["shots"] for average in first["averages"]]
        tables = [self._table(count, summaries) for count in shots]
        claims = [self._claim(claim, count, summaries) for count in shots for claim in self.claims]
        notes = first["notes"]
        for note in notes:
            say(f"note: {note}")
        figures = {
            name: [{part: s[part] for part in ("rows", "averages")} for s in seeds] for name, seeds in summaries.items()
        }
        return Outcome(tables, claims, {"tasks": figures, "notes": notes}, paths_of(runs))

    def _table(self, shots: int, summaries: Summaries) -> Table:
        first = next(iter(summaries.values()))[0]

        def cells(tasks: list[str]) -> list[Any]:
            averages = {name: accuracy(seeds, shots, tasks) for name, seeds in summaries.items()}
            changes = (averages[other].minus(averages[self.reference]).scaled(100) for other in self.others)
            return [*(average.percent() for average in averages.values()), *changes]

        def questions(row: dict[str, Any]) -> str:
            return f"{row['documents']:,}" + (f", {row['cut']:,} cut" if row["cut"] else "")

        tasks = tasks_of(first, shots)
        rows = [[task, questions(row_of(first, shots, task)), *cells([task])] for task in tasks]
        average = [f"Avg of {len(rows)}", "", *cells(tasks)]
        changes = [(f"{other} minus {self.reference}", "+.2f") for other in self.others]
        cut = any(" cut" in row[1] for row in rows)
        return table_of(
            f"Accuracy, %, {shots} shots, ± one standard error over questions; {self.with_seeds}"
            + ("; cut: the beginning did not fit into the model's positions" if cut else ""),
            ["task", "questions", *summaries, *changes],
            [*rows, average],
        )

    def _claim(self, claim: Better, shots: int, summaries: Summaries) -> Claim:
        tasks = tasks_of(summaries[claim.better][0], shots)
        better, than = (accuracy(summaries[name], shots, tasks) for name in claim.names)
        difference = better.minus(than)
        verdict = above(difference)
        if set(tasks) <= set(CHANCE):
            chance = float(np.mean([CHANCE[task] for task in tasks]))
            if not (better.surely_above(chance) or than.surely_above(chance)):
                verdict = undecided(f"neither model is surely above chance, {chance:.1%}")
        evidence = f", mean accuracy over {len(tasks)} tasks: {percentage_points(difference)}; paired by question"
        return claim.decided(verdict, evidence, f", {shots} shots").over_seeds(len(self.seeds))


class PerplexityAndAccuracy(TaskAccuracy, name="perplexity_and_accuracy"):
    """Perplexity on the corpus and, where the tasks' data are given, accuracy on each task (Table 6)."""

    shots: list[int] = Field(default=[0], min_length=1)
    accuracy_claims: list[Better] = Field(default=[])

    def measure(self, item: Item, folder: Path) -> Outcome:
        if self.include_path is not None:
            self.harness_tasks(self.tasks, self.shots)  # what is wrong with it, before any training
        outcome = TrainedModels.measure(self, item, folder)
        if self.include_path is None:
            say("note: accuracies are not measured; give a folder of their definitions with --set include_path=FOLDER")
            return outcome
        accuracies = TaskAccuracy.measure(self.model_copy(update={"claims": self.accuracy_claims}), item, folder)
        outcome.tables += accuracies.tables
        outcome.claims += accuracies.claims
        outcome.figures |= accuracies.figures
        return outcome


def tasks_of(summary: dict[str, Any], shots: int) -> list[str]:
    """The tasks that have an accuracy at a number of shots."""
    return next(average["tasks"] for average in summary["averages"] if average["shots"] == shots)


def row_of(summary: dict[str, Any], shots: int, task: str) -> dict[str, Any]:
    """The summary's row of a task at a number of shots."""
    return next(row for row in summary["rows"] if row["shots"] == shots and row["task"] == task)


def accuracy(seeds: Sequence[dict[str, Any]], shots: int, tasks: Sequence[str]) -> Average:
    """The mean accuracy over tasks: of each seed, and its standard error over questions, which all seeds share."""
    rows = [[row_of(summary, shots, task) for task in tasks] for summary in seeds]
    measures = [[row["measures"]["acc"] for row in seed] for seed in rows]
    values_ST = np.array([[measure["value"] for measure in seed] for seed in measures])
    errors = [[measure["stderr"] for measure in seed] for seed in measures]
    right = [np.array([list(seed[i]["right"]) for seed in rows], dtype=float) for i in range(len(tasks))]
    if any(error is None for seed in errors for error in seed):
        return Average(values_ST.mean(axis=1), None, right)
    per_seed = np.sqrt(np.square(np.array(errors)).sum(axis=1)) / len(tasks)
    return Average(values_ST.mean(axis=1), float(per_seed.mean()), right)
