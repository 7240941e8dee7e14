"""The optimal training context by size of the training set: intrinsic entropy, Section 3, Figures 4 and 14.

For each size of the training set and each context a model is trained, with as many tokens in a step for all, until the loss on
held-out documents rises. What is compared is the lowest best-context loss along each run: the mean over the last tenth of the
training context, on the same held-out tokens for every context. The source compares the mean over all positions, which is
easier for models of longer contexts (context scaling, Section 2); that mean is reported too.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from contextwise.analysis.scaling.fitting import Data, search
from contextwise.analysis.scaling.forms import ONE_SIZE, Law, features_of
from contextwise.analysis.sweep_points import SweepPoint, run_points
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Table
from contextwise.experiments.run_set import RunSet, RunSetSettings
from contextwise.reproductions.corpora import CorpusSource
from contextwise.reproductions.intrinsic_entropy.optima import Optima
from contextwise.reproductions.item import Item, ItemMeasure, Outcome, Plot, registered

LAW = next(form for form in ONE_SIZE if form.name == "harder")
"""Eq. 5 with A(l) = A·l^b and a constant α: six numbers, which some dozen runs can carry."""


@registered("corpus_optimum")
class CorpusOptimum(CorpusSource, ItemMeasure):
    """Models trained on the first tokens of a corpus until they overfit, at several contexts."""

    name: str
    recipe: dict[str, Any]
    sizes: list[int] = Field(min_length=2, description="training tokens, the smallest set first")
    contexts: list[int] = Field(min_length=3, description="the shortest first")
    seeds: list[int] = Field(min_length=1)

    def run_set(self, folder: Path) -> RunSet:
        training = {
            **self.recipe["training"],
            "curve_every": self.recipe["training"]["evaluate_every"],
            "curve_longest": max(self.contexts),
        }
        settings = RunSetSettings(
            recipe={**self.recipe, "training": training},
            arms={self.name: []},
            seeds=self.seeds,
            grid={"data.tokens": self.sizes, "data.context": self.contexts},
        )
        return RunSet.of(settings, folder, corpus=self.corpus_folder(folder))

    def measure(self, item: Item, folder: Path) -> Outcome:
        self.prepared(folder)
        run_set = self.run_set(folder)
        run_set.train_missing()
        points: dict[tuple[int, int], list[SweepPoint]] = {}
        means: dict[tuple[int, int], list[float]] = {}
        for size in self.sizes:
            for context in self.contexts:
                runs = run_set.folders(self.name, {"data.tokens": size, "data.context": context})
                points[size, context] = [lowest(run) for run in runs]
                means[size, context] = [_lowest_mean(run) for run in runs]
        best = Optima(
            {key: [point.loss for point in of_runs] for key, of_runs in points.items()},
            self.sizes,
            self.contexts,
        )
        mean = Optima(means, self.sizes, self.contexts)
        law = fit_law(best.means)
        predicted = {n: best_context_of(law, n, (self.contexts[0], self.contexts[-1])) for n in self.sizes}
        tables = [
            best.table("Lowest best-context loss, nats", "tokens"),
            mean.table("Lowest mean over all positions, nats: what the source compares", "tokens"),
            Table(
                "Tokens read before the loss rose",
                ["context", *(f"{n:,} tokens" for n in self.sizes)],
                [
                    [str(c), *(f"{np.mean([p.tokens for p in points[n, c]]):,.0f}" for n in self.sizes)]
                    for c in self.contexts
                ],
            ),
            Table(
                f"Eq. 5, {LAW.formula}, and where Eq. 6 has its optimum",
                ["training tokens", "measured", "by the law"],
                [[f"{n:,}", str(best.best[n]), f"{predicted[n]:.0f}"] for n in self.sizes],
            ),
        ]
        figures = {
            "best_context_loss": _nested(best.means),
            "mean_loss": _nested(mean.means),
            "optima": best.best,
            "optima_of_the_mean": mean.best,
            "optima_by_law": predicted,
            "law": {name: float(value) for name, value in law.printed().items()},
        }
        claims = [
            best.inner(
                "for every size of the training set a context between the shortest and the longest is best",
                len(self.sizes),
            ),
            best.grows("the best context grows with the training set"),
            mean.grows("so does the context of the lowest mean over all positions"),
        ]
        plots = [self._plot(best.means, False), self._plot(best.means, True), self._plot(mean.means, False)]
        plots[2] = replace(plots[2], title="The same by the mean over all positions, as the source has it")
        return Outcome(tables, claims, figures, plots=plots)

    def _plot(self, losses: dict[tuple[int, int], float], gap: bool) -> Plot:
        """Figure 14; with ``gap`` Figure 4, each training set's lowest loss subtracted."""
        series = {}
        for n in self.sizes:
            least = min(losses[n, c] for c in self.contexts) if gap else 0.0
            series[f"{n:,} tokens"] = [{"x": c, "y": losses[n, c] - least} for c in self.contexts]
        title = "Loss minus the lowest of its training set (Figure 4)" if gap else "Lowest loss (Figure 14)"
        return Plot(title, "training context", "nats per token", series, logarithmic="x")


def lowest(run: RunFolder) -> SweepPoint:
    """The point of a run at which its best-context loss was lowest."""
    return min(run_points(run.path), key=lambda point: point.loss)


def _lowest_mean(run: RunFolder) -> float:
    return min(row["loss"] for row in run.metrics("validation"))


def fit_law(losses: dict[tuple[int, int], float]) -> Law:
    """Eq. 5 fitted to losses by (training tokens, context)."""
    tokens, contexts = (np.array(column, dtype=np.float64) for column in zip(*losses, strict=True))
    centre = np.array([np.log(contexts).mean(), 0.0, np.log(tokens).mean()])
    features = features_of(centre, contexts, np.ones_like(contexts), tokens)
    theta = search(LAW, Data(features, np.log(np.array(list(losses.values())))))
    return Law(LAW, theta[0], centre)


def best_context_of(law: Law, tokens: float, contexts: tuple[float, float]) -> float:
    """Where the law is lowest for a training set, between two contexts (Eq. 6)."""
    grid = np.geomspace(*contexts, 2001)
    return float(grid[np.argmin(law.loss(grid, 1.0, tokens))])


def _nested(values: dict[tuple[int, int], float]) -> dict[str, dict[str, float]]:
    nested: dict[str, dict[str, float]] = {}
    for (size, context), value in values.items():
        nested.setdefault(str(size), {})[str(context)] = value
    return nested
