"""Accuracy of a model on long texts against how much of the text it sees: intrinsic entropy, Figures 9, A.3-1 and A.3-2."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from contextwise.base.config import validate
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate
from contextwise.base.tables import Table
from contextwise.evaluation.kernel import measure
from contextwise.evaluation.measures.ruler import FRACTIONS, Ruler, TaskName
from contextwise.reproductions.claims import Claim, Verdict, all_hold, exact, point, undecided
from contextwise.reproductions.given_model import GivenModel
from contextwise.reproductions.item import Item, Outcome, Plot, registered

SURE = 0.95
"""Share of the resamples in which a visible context has to be the best to count as the optimum."""


@registered("ruler_curves")
class RulerCurves(GivenModel):
    """Questions at every visible context, for each γ of the law of positions and each length of the texts."""

    tasks: list[TaskName] = Field(min_length=1, description="of qa_1, fwe, cwe, vt; qa_1 needs `qa`")
    at_longest: list[TaskName] = Field(
        default_factory=list,
        description="tasks of which the document says that the longest visible context is best",
    )
    gammas: list[float] = Field([0.0], min_length=1, description="γ of P(x) ~ (1 - x/L)^γ")
    lengths: list[int] = Field(min_length=1, description="tokens of a text, at most")
    samples: int = Field(100, ge=2, description="questions of each task")
    qa: Path | None = Field(None, description="questions in SQuAD's form")
    chat: bool = Field(False, description="ask through the model's chat template")
    example: bool = Field(True, description="a worked example before questions of vt and cwe")
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _questions(self) -> "RulerCurves":
        if "qa_1" in self.tasks and self.qa is None:
            raise ConfigError("the task qa_1 needs questions; give a file in SQuAD's form with --set qa=FILE")
        return self

    def tokens_read(self) -> int:
        visible = sum(int(length * part) for length in self.lengths for part in FRACTIONS)
        return len(self.tasks) * len(self.gammas) * self.samples * visible

    def measure(self, item: Item, folder: Path) -> Outcome:
        subject = self.subject(folder)
        results = {
            (length, gamma): self._answers(subject, folder, length, gamma)
            for length, gamma in itertools.product(self.lengths, self.gammas)
        }
        tables, plots = [], []
        for task in self.tasks:
            rows, series = [], {}
            for (length, gamma), result in results.items():
                name = f"{length:,} tokens, γ = {gamma:g}"
                accuracies = result[task]["accuracies"]
                series[name] = [point(row["visible"], Estimate(**row["accuracy"])) for row in accuracies]
                rows += [_row(name, row) for row in accuracies]
            columns = ["texts", "visible", "accuracy", "in view", "best in"]
            title = next(iter(results.values()))[task]["title"]
            tables.append(Table(f"{task}, {title}: {self.samples} questions", columns, rows))
            plots.append(Plot(task, "visible tokens", "accuracy", series, logarithmic="x"))
        claims = [
            claim for task in self.tasks for claim in optimum_claims(task, results, task in self.at_longest)
        ]
        figures = {f"{length}-{gamma:g}": result for (length, gamma), result in results.items()}
        return Outcome(tables, claims, figures, self.runs(folder), plots)

    def _answers(self, subject: str, folder: Path, length: int, gamma: float) -> dict[str, Any]:
        settings = validate(
            Ruler,
            {
                "tasks": self.tasks,
                "length": length,
                "gamma": gamma,
                "samples": self.samples,
                "seed": self.seed,
                "chat": self.chat,
                "example": self.example,
                "qa": self.qa,
            },
            "the settings of RULER",
        )
        kind = f"ruler-{'-'.join(self.tasks)}-{length}-gamma-{gamma:g}-{self.samples}-{self.seed}{'-chat' * self.chat}"
        out = self.measured_folder(folder, kind)
        out.parent.mkdir(parents=True, exist_ok=True)
        return dict(measure(subject, settings, out=out).summary["results"])


def _row(name: str, row: dict[str, Any]) -> list[str]:
    accuracy = f"{Estimate(**row['accuracy']):.3f}"
    return [name, f"{row['visible']:,}", accuracy, f"{row['in_view']:.0%}", f"{row['best_share']:.0%}"]


def optimum_claims(
    task: str, results: dict[tuple[int, float], dict[str, Any]], at_longest: bool = False
) -> list[Claim]:
    """Whether some visible context below the whole is best, in the longest texts, and whether it moves with γ.

    Args:
        results: (length, γ) -> task -> its entry of a RULER summary.
        at_longest: whether the document claims that the complete text is best for this task.
    """
    results_of_task = {key: result[task] for key, result in results.items()}
    inner = {key: inner_optimum(result) for key, result in results_of_task.items()}
    longest_texts = max(length for length, _ in inner)
    words = {True: "below", False: "at the longest", None: "undecided"}
    listed = "; ".join(
        f"{length:,} tokens, γ = {gamma:g}: {words[verdict.holds]}"
        for (length, gamma), verdict in inner.items()
    )
    verdicts = [
        verdict if verdict.holds is None else exact(verdict.holds is not at_longest)
        for (length, _), verdict in inner.items()
        if length == longest_texts
    ]
    where = "at" if at_longest else "at one below"
    claims = [
        Claim.of(f"{task}: accuracy is best {where} the longest visible context", all_hold(verdicts), listed)
    ]
    for length in dict.fromkeys(length for length, _ in results_of_task):
        by_gamma = {gamma: r["optimum"] for (n, gamma), r in sorted(results_of_task.items()) if n == length}
        if len(by_gamma) > 1:
            claims.append(_moves(task, length, by_gamma))
    return claims


def inner_optimum(result: dict[str, Any]) -> Verdict:
    """Whether the best visible context is below the longest one, in nearly all resamples of the questions."""
    if result["optimum"] is None or len(result["accuracies"]) < 2:
        return undecided("all accuracies are equal, or there is one")
    longest = result["accuracies"][-1]["best_share"]
    if 1 - SURE < longest < SURE:
        return undecided(f"the longest is the best in {longest:.0%} of the resamples")
    return exact(longest <= 1 - SURE, longest)


def _moves(task: str, length: int, optima: dict[float, dict[str, Any] | None]) -> Claim:
    """Whether a larger γ has a shorter best context; decided where each optimum is sure."""
    text = f"{task}, {length:,} tokens: the best visible context shrinks as γ grows"
    known = {gamma: best for gamma, best in optima.items() if best is not None}
    evidence = "; ".join(
        f"γ = {gamma:g}: {best['visible']:,} ({best['share']:.0%} of resamples)"
        for gamma, best in known.items()
    )
    if len(known) < len(optima):
        return Claim.of(text, undecided("all accuracies are equal"), evidence)
    if min(best["share"] for best in known.values()) < SURE:
        return Claim.of(text, undecided("an optimum is not sure"), evidence)
    contexts = np.array([best["visible"] for best in known.values()])
    return Claim.of(
        text, exact(bool((np.diff(contexts) <= 0).all() and contexts[-1] < contexts[0])), evidence
    )
