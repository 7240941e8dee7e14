"""The optimal training context by size of the training set: intrinsic entropy, Section 3, Figures 4, 12 and 14.

For each size of the training set and each context a model is trained until the loss on held-out data rises. On a corpus the
lowest best-context loss along each run is compared: the mean over the last tenth of the training context, on the same
held-out tokens. The source compares the mean over all positions, which is easier for longer contexts; it is reported too.

Appendix D.2: by Theorem 1 the mean distance from one of D features to the nearest falls no slower than D^(-c/d), with c = 1
where their density is bounded from below; by Theorem 2 so does the loss above the Bayes model's, with samples: α ≈ c/d.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from contextwise.base.runs import RunFolder
from contextwise.report import Table
from contextwise.runset import RecipeValues, Run, RunSet, RunSetSettings
from contextwise.settings import DataError, Lengths, Seeds, with_overrides
from contextwise.stats import Estimate, mean_estimate
from contextwise.training import VALIDATION_SEED
from contextwise_papers.claims import (
    LEAST_SEEDS,
    Claim,
    Verdict,
    above,
    all_agree,
    all_hold,
    below,
    exact,
    undecided,
    within,
)
from contextwise_papers.intrinsic_entropy.density import distance_line, nearest_distances
from contextwise_papers.intrinsic_entropy.fits import fit_line
from contextwise_papers.intrinsic_entropy.synthetic.samples import Samples
from contextwise_papers.intrinsic_entropy.table_1_figures_6_7_parity import data_of, opened, parity_runs
from contextwise_papers.item import CorpusMeasure, Item, ItemMeasure, Outcome
from contextwise_papers.tables import Plot, points, seeds_behind, table_of
from contextwise_plan.scaling.fitting import Data, search
from contextwise_plan.scaling.forms import ONE_SIZE, Law, features_of
from contextwise_plan.sweeps.points import SweepPoint, run_points

LAW = next(form for form in ONE_SIZE if form.name == "harder")
"""Eq. 5 with A(l) = A·l^b and a constant α: six parameters, which about a dozen runs can determine."""


@dataclass(frozen=True)
class Optima:
    """Lowest losses in nats by (training-set size, context), one value a seed; sizes and contexts ascend."""

    losses: Mapping[tuple[int, int], Sequence[float]]
    sizes: Sequence[int]
    contexts: Sequence[int]

    @property
    def means(self) -> dict[tuple[int, int], float]:
        """Means over seeds."""
        return {key: float(np.mean(values)) for key, values in self.losses.items()}

    @property
    def best(self) -> dict[int, int]:
        """Size -> the context of the lowest mean; the shorter one of two."""
        return self._best(self.means)

    @property
    def best_of_seeds(self) -> dict[int, list[int]]:
        """Size -> the context of the lowest loss, seed by seed."""
        every = [self._best(losses) for losses in self._of_seeds()]
        return {n: [best[n] for best in every] for n in self.sizes}

    def _of_seeds(self) -> list[dict[tuple[int, int], float]]:
        return [dict(zip(self.losses, values, strict=True)) for values in zip(*self.losses.values(), strict=True)]

    def _best(self, losses: Mapping[tuple[int, int], float]) -> dict[int, int]:
        return {n: min(self.contexts, key=lambda context: losses[n, context]) for n in self.sizes}

    def by_size(self, values: Mapping[tuple[int, int], Any]) -> dict[str, dict[str, Any]]:
        """Values by size and then by context, with texts as keys."""
        return {str(n): {str(c): values[n, c] for c in self.contexts} for n in self.sizes}

    def table(self, title: str, unit: str, lowest: Mapping[int, str] | None = None) -> Table:
        """Losses of each context (rows) and size (columns); ``lowest`` has a further cell of each context."""
        seeds = seeds_behind(len(next(iter(self.losses.values()))))
        means, best = self.means, self.best
        rows = [
            [context, *([] if lowest is None else [lowest[context]])]
            + [f"{means[n, context]:.4f}{'*' if best[n] == context else ''}" for n in self.sizes]
            for context in self.contexts
        ]
        head = ["context"] if lowest is None else ["context", "lowest"]
        columns = [*head, *(f"{n:,} {unit}" for n in self.sizes)]
        return table_of(f"{title} ({seeds}; * the lowest of a column)", columns, rows)

    def plot(self, title: str, unit: str, x: str, y: str, gap: bool = False) -> Plot:
        """Mean losses over the context; with ``gap`` each training set's lowest loss is subtracted."""
        means, series = self.means, {}
        for n in self.sizes:
            least = min(means[n, c] for c in self.contexts) if gap else 0.0
            series[f"{n:,} {unit}"] = points({c: means[n, c] - least for c in self.contexts})
        return Plot(title, x, y, series, logarithmic="x")

    def inner(self, text: str, least: float) -> Claim:
        """Whether for ``least`` or more of the sizes a context between the shortest and the longest is best."""

        def inside(best: Mapping[int, int]) -> int:
            return sum(self.contexts[0] < best[n] < self.contexts[-1] for n in self.sizes)

        verdict = self._each_seed(lambda best: inside(best) >= least)
        return Claim.of(text, verdict, f"for {inside(self.best)} of {len(self.sizes)}")

    def grows(self, text: str) -> Claim:
        """Whether the best context grows with the training set."""

        def growing(best: Mapping[int, int]) -> bool:
            contexts = [best[n] for n in self.sizes]
            return contexts == sorted(contexts) and contexts[-1] > contexts[0]

        evidence = ", ".join(f"{n:,}: {c}" for n, c in self.best.items())
        return Claim.of(text, self._each_seed(growing), evidence)

    def _each_seed(self, holds: Callable[[Mapping[int, int]], bool]) -> Verdict:
        """A condition on the best contexts, over seeds."""
        verdicts = (exact(holds(self._best(losses)), *losses.values()) for losses in self._of_seeds())
        return all_agree(verdicts, "seeds", LEAST_SEEDS)


class BestContext(ItemMeasure):
    """Models trained to overfitting on sets of several sizes, at several contexts."""

    name: str
    recipe: RecipeValues
    sizes: Lengths = Field(min_length=2, description="training tokens or samples, the smallest set first")
    contexts: Lengths = Field(min_length=3, description="the shortest first")
    seeds: Seeds = Field(min_length=1, description="each with training sets and weights of its own")

    def optima(self, runs: RunSet, section: str, size: str, lowest: Callable[[RunFolder], float]) -> Optima:
        """The lowest losses of the runs; the settings ``size`` and ``context`` are in ``section``."""
        losses = {}
        for n, c in product(self.sizes, self.contexts):
            of_seeds = runs.folders(self.name, {f"{section}.{size}": n, f"{section}.context": c})
            losses[n, c] = [lowest(run) for run in of_seeds]
        return Optima(losses, self.sizes, self.contexts)


def lowest_mean(run: RunFolder) -> float:
    """The lowest validation loss along a run."""
    return min(row["loss"] for row in run.metrics("validation"))


def lowest(run: RunFolder) -> SweepPoint:
    """The point of a run at which its best-context loss was lowest."""
    return min(run_points(run.path), key=lambda point: point.loss)


class CorpusOptimum(CorpusMeasure, BestContext, name="corpus_optimum"):
    """Models trained on the first tokens of a corpus, all with as many tokens in a step (Figures 4 and 14)."""

    def run_set(self, folder: Path) -> RunSet:
        training = self.recipe.get("training", {})
        curves = {"curve_every": training.get("evaluate_every"), "curve_longest": max(self.contexts)}
        recipe = {**self.recipe, "training": {**training, **curves}}
        grid = {"data.tokens": self.sizes, "data.context": self.contexts}
        settings = RunSetSettings(recipe=recipe, arms={self.name: []}, seeds=self.seeds, grid=grid)
        return RunSet.of(settings, folder, corpus=self.corpus_folder(folder))

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.train(folder)
        best = self.optima(runs, "data", "tokens", lambda run: lowest(run).loss)
        mean = self.optima(runs, "data", "tokens", lowest_mean)
        read = self.optima(runs, "data", "tokens", lambda run: lowest(run).tokens).means
        law = fit_law(best.means)
        predicted = {n: best_context_of(law, n, (self.contexts[0], self.contexts[-1])) for n in self.sizes}
        tables = [
            best.table("Lowest best-context loss, nats", "tokens"),
            mean.table("Lowest mean over all positions, nats: what the source compares", "tokens"),
            table_of(
                "Tokens read before the loss rose",
                ["context", *((f"{n:,} tokens", ",.0f") for n in self.sizes)],
                [[c, *(read[n, c] for n in self.sizes)] for c in self.contexts],
            ),
            table_of(
                f"Eq. 5, {LAW.formula}, and where Eq. 6 has its optimum",
                [("training tokens", ","), "measured", ("by the law", ".0f")],
                [[n, best.best[n], predicted[n]] for n in self.sizes],
            ),
        ]
        figures = {
            "best_context_loss": best.by_size(best.means),
            "mean_loss": mean.by_size(mean.means),
            "optima": best.best,
            "optima_of_seeds": best.best_of_seeds,
            "optima_of_the_mean": mean.best,
            "optima_by_law": predicted,
            "law": {name: float(value) for name, value in law.printed().items()},
        }
        text = "for every size of the training set a context between the shortest and the longest is best"
        claims = [best.inner(text, len(self.sizes)), best.grows("the best context grows with the training set")]
        claims.append(mean.grows("so does the context of the lowest mean over all positions"))
        words = ("tokens", "training context", "nats per token")
        plots = [
            best.plot("Lowest loss (Figure 14)", *words),
            best.plot("Loss minus the lowest of its training set (Figure 4)", *words, gap=True),
            mean.plot("The same by the mean over all positions, as the source has it", *words),
        ]
        return Outcome(tables, claims, figures, runs.paths, plots)


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


class ParityOptimum(BestContext, name="parity_optimum"):
    """MLPs trained on samples of the parity task; each one's best validation (Appendix F, Figure 12).

    From three sizes on, also how the approximation loss and the distances of features scale with samples (Appendix D.2).
    """

    def run_set(self, folder: Path) -> RunSet:
        recipe = with_overrides(self.recipe, {"data.synthetic.masked": 0.0})
        return parity_runs(recipe, folder, self.name, self.seeds, samples=self.sizes, context=self.contexts)

    def measure(self, item: Item, folder: Path) -> Outcome:
        runs = self.train(folder)
        optima = self.optima(runs, "data.synthetic", "samples", lowest_mean)
        parity = data_of(runs.runs[0]).parity()
        least = {c: f"{parity.minimum_cross_entropy(c):.4f}" for c in self.contexts}
        text = "for most sizes of the training set the best context lies between the shortest and the longest"
        most = len(self.sizes) // 2 + 1
        claims = [optima.inner(text, most), optima.grows("the best context grows with the training set")]
        figures = {
            "losses": optima.by_size(optima.losses),
            "optima": optima.best,
            "optima_of_seeds": optima.best_of_seeds,
        }
        title = "Best validation cross entropy"
        plots = [optima.plot(title, "samples", "context, bits", "nats")]
        outcome = Outcome([optima.table(f"{title}, nats", "samples", least)], claims, figures, runs.paths, plots)
        if len(self.sizes) > 2:
            largest = {
                c: runs.of_arm(self.name, {"data.synthetic.samples": self.sizes[-1], "data.synthetic.context": c})
                for c in self.contexts
            }
            add_data_scaling(outcome, optima.losses, largest)
        return outcome


MOST = 4096
"""Features whose distances are compared."""
SPREAD = 0.5
"""c = α d counts as the same where it is within so much of its mean, relatively; the document gives no number."""


def add_data_scaling(
    outcome: Outcome, losses: Mapping[tuple[int, int], Sequence[float]], largest: Mapping[int, Sequence[Run]]
) -> None:
    """Add the distances, the dimension that follows from them, and the exponent of the loss to an outcome.

    ``largest``: context -> the runs on the most samples, seed by seed, whose features are measured.
    """
    distances = {context: [distances_of(run) for run in runs] for context, runs in largest.items()}
    distances = {context: of_seeds for context, of_seeds in distances.items() if all(of_seeds)}
    slopes = {c: [distance_line(d).slope.value for d in of_seeds] for c, of_seeds in distances.items()}
    dimensions = {c: [-1 / slope for slope in of_seeds] for c, of_seeds in slopes.items()}
    exponents = {c: loss_exponents(losses, c, lowest_loss(runs[0], c)) for c, runs in largest.items()}
    rows = []
    for c, runs in largest.items():
        of_slopes = _over_seeds(slopes.get(c))
        rows.append(
            [c, data_of(runs[0]).parity().visible_tasks(c), of_slopes, _over_seeds(dimensions.get(c)),
             _over_seeds(exponents[c]), _over_seeds(_products(exponents[c], dimensions.get(c)))]
        )  # fmt: skip
    count = len(next(iter(largest.values())))
    columns = ["context", "visible tasks", ("slope of ln distance", ".4f"), ("dimension d", ".2f"), ("α of the loss", ".3f"),
               ("c = α d", ".2f")]  # fmt: skip
    title = f"Distances to the nearest of D features, and loss above the lowest ~ samples^-α ({seeds_behind(count)})"
    outcome.tables += [table_of(title, columns, rows), _distances_table(distances)]
    outcome.claims += scaling_claims(dimensions, exponents)
    series = {f"{c} bits": points(_mean_distances(of_seeds)) for c, of_seeds in distances.items()}
    outcome.plots.append(
        Plot("Mean distance to the nearest feature", "features D", "distance", series, logarithmic="xy")
    )
    outcome.figures |= {"distances": distances, "dimensions": dimensions, "exponents": exponents}


def scaling_claims(
    dimensions: Mapping[int, Sequence[float]], exponents: Mapping[int, Sequence[float] | None]
) -> list[Claim]:
    """The claims of Section 2.3 on the contexts that have both a dimension and an exponent, seed by seed."""
    both = {
        c: (np.array(dimensions[c]), np.array(alphas)) for c, alphas in exponents.items() if alphas and c in dimensions
    }
    texts = (
        "the dimension by nearest distances grows with the context",
        "the exponent of the approximation loss falls with the context (Eq. 4)",
        f"α ≈ c/d: c is within {SPREAD:.0%} of its mean at every context",
    )
    if len(both) < 2:
        why = undecided("fewer than two contexts have both a dimension and an exponent")
        return [Claim.of(text, why) for text in texts]
    shortest, longest = min(both), max(both)
    (d_short, a_short), (d_long, a_long) = both[shortest], both[longest]
    more, less = mean_estimate(d_long - d_short), mean_estimate(a_long - a_short)
    products = {c: d * alphas for c, (d, alphas) in both.items()}
    center = float(np.mean(list(products.values())))
    relative = {c: mean_estimate(of_seeds / center) for c, of_seeds in products.items()}
    same = all_hold(within(each, 1 - SPREAD, 1 + SPREAD) for each in relative.values())
    between = f"{longest} minus {shortest} bits"
    spread = ", ".join(f"{c}: {each.value:.2f}" for c, each in relative.items())
    decided = ((above(more), f"{between}: {more:+.2f}"), (below(less), f"{between}: {less:+.3f}"),
               (same, f"mean {center:.2f}; over it {spread}"))  # fmt: skip
    return [Claim.of(text, *verdict) for text, verdict in zip(texts, decided, strict=True)]


@torch.no_grad()
def distances_of(run: Run) -> dict[int, float]:
    """Mean distances of a model's context features, by their number; empty where fewer than 100 of them differ."""
    model, samples = opened(run)
    input_ids = samples.batch(np.arange(MOST))["input_ids"]
    try:
        return nearest_distances(model.context_feature(input_ids.to(model.device)).cpu(), MOST)
    except DataError:
        return {}


def lowest_loss(run: Run, context: int) -> float:
    """The Bayes model's loss on the samples that a run is validated on, nats."""
    samples = Samples(data_of(run), VALIDATION_SEED, "validation")
    tasks = samples.draw(np.arange(data_of(run).validation_samples)).tasks
    return math.log(2) * float((samples.parity.larger[tasks] > context).mean())


def loss_exponents(
    losses: Mapping[tuple[int, int], Sequence[float]], context: int, lowest: float
) -> list[float] | None:
    """α of each seed: the approximation loss falls as samples^-α; None where a loss is not above the lowest."""
    sizes = sorted(size for size, c in losses if c == context)
    gaps = [np.array(losses[size, context]) - lowest for size in sizes]
    if min(map(np.min, gaps)) <= 0:
        return None
    x = {size: math.log(size) for size in sizes}
    return [
        -fit_line(x, dict(zip(sizes, np.log(of_seed).tolist(), strict=True))).slope.value
        for of_seed in zip(*gaps, strict=True)
    ]


def _products(alphas: Sequence[float] | None, dimensions: Sequence[float] | None) -> list[float] | None:
    return [a * d for a, d in zip(alphas, dimensions, strict=True)] if alphas and dimensions else None


def _over_seeds(values: Sequence[float] | None) -> Estimate | str:
    return mean_estimate(np.array(values)) if values else "none"


def _mean_distances(of_seeds: Sequence[Mapping[int, float]]) -> dict[int, Estimate]:
    """The means over seeds; the numbers of features that differ may do so slightly between seeds."""
    by_size = zip(*(sorted(own.items()) for own in of_seeds), strict=True)
    return {
        round(np.mean([count for count, _ in own])): mean_estimate(np.array([distance for _, distance in own]))
        for own in by_size
    }


def _distances_table(distances: Mapping[int, Sequence[Mapping[int, float]]]) -> Table:
    rows = [
        [context, count, distance]
        for context, of_seeds in distances.items()
        for count, distance in _mean_distances(of_seeds).items()
    ]
    columns = ["context", ("features D", ","), ("mean distance to the nearest", ".4f")]
    return table_of("Distances between context features of the models of most samples", columns, rows)
