"""MLPs trained at several contexts of the parity task: intrinsic dimension, and the optimal context by number of samples.

Sources: intrinsic entropy, Appendix J.3 (Figure 17) and Appendix F (Figure 12).
"""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from contextwise.analysis.fits import LineFit, fit_line, fit_power
from contextwise.analysis.spectra import relative_eigenvalues
from contextwise.base.errors import ConfigError
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Table
from contextwise.experiments.run_set import RunSet
from contextwise.reproductions.claims import Claim, exact
from contextwise.reproductions.intrinsic_entropy.optima import Optima
from contextwise.reproductions.intrinsic_entropy.parity_models import (
    data_of,
    feature_eigenvalues,
    held_out,
    measure_contexts,
    open_parity_model,
    parity_runs,
    spectra_plot,
)
from contextwise.reproductions.item import Item, ItemMeasure, Outcome, Plot, registered


@registered("parity_dimension")
class ParityDimension(ItemMeasure):
    """An MLP for each context; the spectrum of its context feature beside the number of visible tasks (Appendix J.3)."""

    name: str
    recipe: dict[str, Any]
    contexts: list[int] = Field(min_length=4)
    samples: int = Field(20_000, ge=1000, description="held-out samples that are measured")

    def run_set(self, folder: Path) -> RunSet:
        return parity_runs(self.recipe, folder, self.name, context=self.contexts)

    def measure(self, item: Item, folder: Path) -> Outcome:
        losses, dimensions, spectra, lowest = {}, {}, {}, {}
        run_set = self.run_set(folder)
        run_set.train_missing()
        for context, run in zip(self.contexts, run_set.runs, strict=True):
            model, samples = open_parity_model(RunFolder(run.folder)), held_out(data_of(run))
            measured_loss = measure_contexts(model, samples, [context], self.samples)[context]
            eigenvalues = feature_eigenvalues(model, samples, context, self.samples)
            spectra[context] = relative_eigenvalues(eigenvalues)
            losses[context], lowest[context] = measured_loss.loss, measured_loss.minimum
            dimensions[context] = samples.parity.visible_tasks(context)
        bounds = {c: thresholds(spectra[c], dimensions[c]) for c in self.contexts}
        rows = [
            [
                str(c),
                str(dimensions[c]),
                f"{lowest[c]:.4f}",
                f"{losses[c]:.4f}",
                "{:.4f} to {:.4f}".format(*bounds[c]),
            ]
            for c in self.contexts
        ]
        head = ["context", "ID", "lowest", "model", "θ that counts ID"]
        measured = Table("Dimension (visible tasks) and cross entropy, nats", head, rows)
        line = fit_line({c: float(d) for c, d in dimensions.items()}, losses)
        slope = -math.log(2) / samples.parity.tasks
        claims = [_linear(line, slope), _one_threshold(bounds)]
        figures = {
            "losses": losses,
            "dimensions": dimensions,
            "spectra": {c: s.tolist() for c, s in spectra.items()},
        }
        tables = [measured, _fits(line, slope, losses, dimensions)]
        return Outcome(tables, claims, figures, plots=[spectra_plot(spectra)])


def _fits(line: LineFit, slope: float, losses: dict[int, float], dimensions: dict[int, int]) -> Table:
    rows = [
        ["CE = k ID + b: k", f"{line.slope:.5f}", f"{slope:.5f}"],
        ["b", f"{line.intercept:.4f}", f"{math.log(2):.4f}"],
        ["R²", f"{line.r_squared:.6f}", "1"],
    ]
    powers: list[tuple[str, dict[int, float]]] = [
        ("CE = C0 + C / l^γ", losses),
        ("ID = C0 + C / l^γ", {c: float(d) for c, d in dimensions.items()}),
    ]
    for name, values in powers:
        try:
            fit = fit_power(values)
        except ConfigError:
            rows.append([name, "no power law fits", ""])
            continue
        rows += [
            [f"{name}: C0", f"{fit.floor:.3f}", ""],
            ["C", f"{fit.scale:.1f}", ""],
            ["γ", f"{fit.exponent:.2f}", ""],
        ]
    return Table("Fits, with 95% intervals", ["fit", "ours", "exact"], rows)


def _linear(line: LineFit, slope: float) -> Claim:
    return Claim.of(
        "cross entropy is linear in the dimension, with a slope of -log 2 / tasks",
        exact(
            line.r_squared > 0.99 and abs(line.slope.value / slope - 1) < 0.1,
            line.r_squared,
            line.slope.value,
        ),
        f"slope {line.slope.value:.5f}, exact {slope:.5f}, R² {line.r_squared:.5f}",
    )


def _one_threshold(bounds: dict[int, tuple[float, float]]) -> Claim:
    low, high = max(low for low, _ in bounds.values()), min(high for _, high in bounds.values())
    return Claim.of(
        "one threshold on relative eigenvalues gives the dimension at every context",
        exact(low < high, low, high),
        f"any above {low:.4f}, up to {high:.4f}"
        if low < high
        else f"one context needs more than {low:.4f}, another at most {high:.4f}",
    )


def thresholds(relative: np.ndarray, dimension: int) -> tuple[float, float]:
    """Thresholds θ at which exactly ``dimension`` relative eigenvalues are ≥ θ: above the first, up to the second."""
    low = float(relative[dimension]) if dimension < len(relative) else 0.0
    return low, float(relative[dimension - 1]) if 0 < dimension <= len(relative) else math.inf


@registered("parity_optimum")
class ParityOptimum(ItemMeasure):
    """MLPs trained to overfitting on sets of several sizes, at several contexts; each one's best validation (Figure 12)."""

    name: str
    recipe: dict[str, Any]
    sizes: list[int] = Field(min_length=2, description="training samples, the smallest set first")
    contexts: list[int] = Field(min_length=3, description="bits, the shortest context first")
    seeds: list[int] = Field(min_length=1, description="each draws its own training sets and weights")

    def run_set(self, folder: Path) -> RunSet:
        recipe = copy.deepcopy(self.recipe)
        recipe["data"]["synthetic"]["masked"] = 0.0
        return parity_runs(recipe, folder, self.name, self.seeds, samples=self.sizes, context=self.contexts)

    def measure(self, item: Item, folder: Path) -> Outcome:
        run_set = self.run_set(folder)
        run_set.train_missing()
        best = {
            (size, context): [
                min(row["loss"] for row in run.metrics("validation"))
                for run in run_set.folders(
                    self.name, {"data.synthetic.samples": size, "data.synthetic.context": context}
                )
            ]
            for size in self.sizes
            for context in self.contexts
        }
        optima = Optima(best, self.sizes, self.contexts)
        data = data_of(run_set.runs[0])
        parity = data.parity()
        lowest = {c: f"{parity.minimum_cross_entropy(c):.4f}" for c in self.contexts}
        claims = [
            optima.inner(
                "for most sizes of the training set the best context lies between the shortest and the longest",
                len(self.sizes) // 2 + 1,
            ),
            optima.grows("the best context grows with the training set"),
        ]
        means = optima.means
        series = {f"{n:,} samples": [{"x": c, "y": means[n, c]} for c in self.contexts] for n in self.sizes}
        return Outcome(
            [optima.table("Best validation cross entropy, nats", "samples", lowest)],
            claims,
            {
                "losses": {str(n): {str(c): best[n, c] for c in self.contexts} for n in self.sizes},
                "optima": optima.best,
            },
            plots=[Plot("Best validation cross entropy", "context, bits", "nats", series, logarithmic="x")],
        )
