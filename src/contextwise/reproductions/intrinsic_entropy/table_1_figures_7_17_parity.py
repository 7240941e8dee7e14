"""Trained models beside the exact figures of the parity task: Table 1 and Figures 7 and 17 of the intrinsic-entropy document.

Legend of shapes: N samples, F channels of the context feature.
"""

import math
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from contextwise.analysis.fits import LineFit, fit_line, fit_power
from contextwise.analysis.spectra import intrinsic_entropies, relative_eigenvalues, shared_rank
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate, as_json
from contextwise.base.intervals import NORMAL, plus_minus
from contextwise.base.tables import Table
from contextwise.data.synthetic import ParityData
from contextwise.data.synthetic.samples import Samples
from contextwise.experiments.run_set import Run, RunSet, RunSetSettings
from contextwise.models.loading import load_as, load_config
from contextwise.models.parity import ParityMLP, ParityTransformer
from contextwise.reproductions.claims import Claim, exact, undecided
from contextwise.reproductions.item import Item, ItemMeasure, Outcome, registered
from contextwise.reproductions.tables import Plot, point, points, table_of
from contextwise.training.inputs import VALIDATION_SEED
from contextwise.training.settings import SyntheticData

_AT_ONCE = 4096


@dataclass(frozen=True)
class ContextLoss:
    """A trained model at one context.

    Attributes:
        loss: mean cross entropy of the answers, nats.
        standard_error: of ``loss`` over samples.
        excess: ``loss`` minus the mean of the lowest possible loss on the same samples: log 2 where the task's larger bit is
            not visible, and 0 elsewhere. Without the sampling noise of how many samples are of which kind.
        minimum: the exact lowest cross entropy.
    """

    loss: float
    standard_error: float
    excess: float
    minimum: float

    @property
    def estimate(self) -> Estimate:
        """The loss with its interval over samples."""
        return plus_minus(self.loss, NORMAL * self.standard_error, method="normal")


@torch.no_grad()
def measure_contexts(model: Any, samples: Samples, contexts: list[int], count: int) -> dict[int, ContextLoss]:
    """Cross entropy of the same ``count`` samples with only the nearest bits visible, for each number of bits."""
    parity, measured = samples.parity, {}
    for context in contexts:
        nats, hidden = [], []
        for numbers in _pieces(count):
            batch = samples.batch(numbers, visible=context)
            logits = model(batch["input_ids"].to(model.device)).logits.float().cpu()
            nats.append(torch.nn.functional.cross_entropy(logits, batch["labels"][:, 0], reduction="none"))
            hidden.append(parity.larger[samples.draw(numbers).tasks] > context)
        losses, lowest = torch.cat(nats).double().numpy(), math.log(2) * np.concatenate(hidden)
        measured[context] = ContextLoss(
            float(losses.mean()),
            float(losses.std(ddof=1) / math.sqrt(count)),
            float((losses - lowest).mean()),
            parity.minimum_cross_entropy(context),
        )
    return measured


@torch.no_grad()
def feature_eigenvalues(model: Any, samples: Samples, context: int, count: int, **layer: int) -> np.ndarray:
    """Eigenvalues of the centred covariance of the context feature with ``context`` bits visible, (F,), the largest first.

    ``layer`` is passed on to ``context_feature``.
    """
    total: Any = 0.0
    products: Any = 0.0
    for numbers in _pieces(count):
        batch = samples.batch(numbers, visible=context)
        feature = model.context_feature(batch["input_ids"].to(model.device), **layer).double().cpu().numpy()
        total, products = total + feature.sum(0), products + feature.T @ feature
    mean = total / count
    covariance = products / count - np.outer(mean, mean)
    return np.linalg.eigvalsh(covariance)[::-1].clip(min=0)


def _pieces(count: int) -> list[np.ndarray]:
    return np.array_split(np.arange(count), max(1, -(-count // _AT_ONCE)))


def parity_runs(
    recipe: dict[str, Any], folder: Path, name: str, seeds: list[int] | None = None, **axes: list[int]
) -> RunSet:
    """The runs of a recipe; ``axes`` are values of settings of ``data.synthetic``."""
    grid = {f"data.synthetic.{setting}": values for setting, values in axes.items()}
    seeds = seeds or [recipe.get("seed", 0)]
    return RunSet.of(RunSetSettings(recipe=recipe, arms={name: []}, seeds=seeds, grid=grid), folder)


def data_of(run: Run) -> ParityData:
    """The samples' settings of a run."""
    section = run.recipe().data
    assert isinstance(section, SyntheticData)
    return section.synthetic


def opened(run: Run) -> tuple[Any, Samples]:
    """The model of a finished run, for evaluation, and the samples that runs are validated and measured on."""
    kinds = {kind.config_class.model_type: kind for kind in (ParityMLP, ParityTransformer)}
    model = load_as(kinds[load_config(run.folder).model_type], "parity model", run.folder)
    return model, Samples(data_of(run), VALIDATION_SEED, "validation")


def spectra_plot(relative: dict[int, np.ndarray]) -> Plot:
    """Relative eigenvalues of each context, without those that are zero."""
    series = {
        f"{context} bits": points({i: float(value) for i, value in enumerate(values, 1) if value > 0})
        for context, values in relative.items()
    }
    return Plot("Relative eigenvalues", "index i", "λ_i / λ_1", series, logarithmic="y")


class OneModel(ItemMeasure):
    """A measure of one trained model at several contexts."""

    name: str
    recipe: dict[str, Any]
    contexts: list[int] = Field(min_length=1)
    samples: int = Field(default=65_536, ge=1000, description="held-out samples that are measured")

    def run_set(self, folder: Path) -> RunSet:
        runs = parity_runs(self.recipe, folder, self.name)
        data = data_of(runs.runs[0])
        bits = data.context or data.bits
        if beyond := [context for context in self.contexts if context > bits]:
            raise ConfigError(f"contexts has {beyond[0]}, but the inputs have {bits} bits")
        return runs


@registered("parity_table")
class ParityTable(OneModel):
    """Cross entropy of a trained model beside the lowest possible, at several contexts (Appendix C.4, Table 1)."""

    tolerance: float = Field(gt=0, description="nats above the lowest that count as reached")

    def measure(self, item: Item, folder: Path) -> Outcome:
        model, samples = opened(*self.train(folder).runs)
        measured = measure_contexts(model, samples, self.contexts, self.samples)
        printed_pairs = zip(item.printed["model"], item.printed["minimum"], strict=True)
        printed = dict(zip(item.printed["contexts"], printed_pairs, strict=True))
        same_task = samples.parity.bits == item.printed["bits"]
        head = ["context", ("lowest", ".4f"), ("model", ".4f"), ("excess", "+.4f")]
        paper = (("paper: model", ".4f"), ("paper: lowest", ".4f")) if same_task else ()
        beside = {c: printed.get(c, (None, None)) if same_task else () for c in measured}
        rows = [[c, m.minimum, m.estimate, m.excess, *beside[c]] for c, m in measured.items()]
        tables = [table_of("Cross entropy of the answer, nats", [*head, *paper], rows)]
        if not same_task:
            title = f"The paper's own, at {item.printed['bits']} bits and {item.printed['tasks']} tasks"
            rows = [[c, low, own, own - low] for c, (own, low) in printed.items()]
            tables.append(table_of(title, head, rows))
        gaps = {context: loss.loss - loss.minimum for context, loss in measured.items()}
        worst = max(gaps, key=lambda context: abs(gaps[context]))
        claim = Claim.of(
            f"at every context the trained model is within {self.tolerance:g} nats of the lowest cross entropy",
            exact(abs(gaps[worst]) <= self.tolerance, *gaps.values()),
            f"at most {gaps[worst]:+.4f} nats, at a context of {worst}",
        )
        series = {
            "model": points({c: loss.estimate for c, loss in measured.items()}),
            "lowest": points({c: loss.minimum for c, loss in measured.items()}),
        }
        plot = Plot("Cross entropy of the answer", "visible bits", "nats", series)
        return Outcome(tables, [claim], {"contexts": measured}, plots=[plot])


@registered("parity_entropy")
class ParityEntropy(OneModel):
    """Whether cross entropy is linear in the intrinsic entropy of the leading N directions (Figure 7).

    The source takes a middle representation (Section 4.3, Appendix C.4) without saying which: here it is the state after half
    of the blocks, rounded up, at the task token. The state that the answer is read from is shown beside it.
    """

    linear: float = Field(default=0.94, gt=0, lt=1, description="R² from which a line counts as one")

    def measure(self, item: Item, folder: Path) -> Outcome:
        model, samples = opened(*self.train(folder).runs)
        measured = measure_contexts(model, samples, self.contexts, self.samples)
        losses = {context: loss.loss for context, loss in measured.items()}
        views: dict[str, dict[str, int]] = {"last state": {}}
        if isinstance(model, ParityTransformer):
            middle = -(-model.config.num_hidden_layers // 2)
            views = {f"after block {middle}": {"blocks": middle}, **views}
        outcome = Outcome([], [], {"losses": losses})
        for name, layer in views.items():
            spectra = {c: feature_eigenvalues(model, samples, c, self.samples, **layer) for c in self.contexts}
            self._add(outcome, name, spectra, losses)
        return outcome

    def _add(self, outcome: Outcome, name: str, spectra: dict[int, np.ndarray], losses: dict[int, float]) -> None:
        """Add the lines over the entropies of one layer's features to the outcome."""
        entropies = {context: intrinsic_entropies(values) for context, values in spectra.items()}
        shared = shared_rank(spectra)
        lines = {
            n: fit_line({c: float(values[n - 1]) for c, values in entropies.items()}, losses)
            for n in range(2, shared + 1)
        }
        first = first_lasting(lines, self.linear)
        width = len(next(iter(spectra.values())))
        chosen = sorted({2, 5, 10, 20, 40, 70, 100, 200, shared} & set(lines) | ({first} if first else set()))
        table = table_of(
            f"Cross entropy against S_N over {len(self.contexts)} contexts ({name}, {width} channels)",
            ["N", ("R²", ".4f"), ("slope", ".5f"), ("correlation", "+.4f")],
            [[n, lines[n].r_squared, lines[n].slope.value, lines[n].correlation] for n in chosen],
        )
        best, last = max(line.r_squared for line in lines.values()), lines[shared].r_squared
        lasting = f"from N = {first} on, of {shared}; R² {last:.4f} at the last"
        linear = f"{name}: cross entropy is linear in S_N (R² of {self.linear:g} or more) from some N on"
        unsure = f"R² {best:.4f} at best, {last:.4f} at N = {shared}"
        outcome.tables.append(table)
        outcome.claims.append(Claim.of(linear, exact(first is not None, best), lasting if first else unsure))
        falls, evidence = undecided("no line lasts"), ""
        if first:
            falls = exact(all(line.slope.value < 0 for n, line in lines.items() if n >= first))
            evidence = "slopes below 0"
        outcome.claims.append(Claim.of(f"{name}: the loss falls as the entropy grows", falls, evidence))
        against = {
            f"N = {n}": sorted(
                (point(float(entropies[c][n - 1]), losses[c]) for c in self.contexts), key=lambda p: p["x"]
            )
            for n in chosen
        }
        relative = {context: relative_eigenvalues(values) for context, values in spectra.items()}
        outcome.plots += [
            replace(spectra_plot(relative), title=f"Relative eigenvalues, {name}"),
            Plot(f"Cross entropy against S_N, {name}", "S_N, nats", "nats", against),
        ]
        r_squared = {n: line.r_squared for n, line in lines.items()}
        outcome.figures[name] = as_json({"eigenvalues": spectra, "r_squared": r_squared})


def first_lasting(lines: dict[int, LineFit], threshold: float) -> int | None:
    """The smallest N from which on every line has at least that R²; None if the last one has not."""
    lasting = takewhile(lambda n: lines[n].r_squared >= threshold, sorted(lines, reverse=True))
    return min(lasting, default=None)


@registered("parity_dimension")
class ParityDimension(ItemMeasure):
    """An MLP for each context; the spectrum of its context feature beside the number of visible tasks (Appendix J.3)."""

    name: str
    recipe: dict[str, Any]
    contexts: list[int] = Field(min_length=4)
    samples: int = Field(default=20_000, ge=1000, description="held-out samples that are measured")

    def run_set(self, folder: Path) -> RunSet:
        return parity_runs(self.recipe, folder, self.name, context=self.contexts)

    def measure(self, item: Item, folder: Path) -> Outcome:
        losses, dimensions, spectra, lowest, joint = {}, {}, {}, {}, {}
        for context, run in zip(self.contexts, self.train(folder).runs, strict=True):
            model, samples = opened(run)
            loss = measure_contexts(model, samples, [context], self.samples)[context]
            eigenvalues = feature_eigenvalues(model, samples, context, self.samples)
            spectra[context] = relative_eigenvalues(eigenvalues)
            losses[context], lowest[context] = loss.loss, loss.minimum
            dimensions[context] = samples.parity.visible_tasks(context)
            joint[context] = samples.parity.answers_entropy(context)
        bounds = {c: thresholds(spectra[c], dimensions[c]) for c in self.contexts}
        entropies, numbers = (("ID log 2", ".3f"), ("exact S", ".3f")), (("lowest", ".4f"), ("model", ".4f"))
        rows = [
            [c, d, d * math.log(2), joint[c], lowest[c], losses[c], "{:.4f} to {:.4f}".format(*bounds[c])]
            for c, d in dimensions.items()
        ]
        columns = ["context", "ID", *entropies, *numbers, "θ that counts ID"]
        measured = table_of("Dimension (visible tasks) and cross entropy, nats", columns, rows)
        line = fit_line({c: float(d) for c, d in dimensions.items()}, losses)
        slope, own = -math.log(2) / samples.parity.tasks, line.slope.value
        low, high = max(low for low, _ in bounds.values()), min(high for _, high in bounds.values())
        one_threshold = f"any above {low:.4f}, up to {high:.4f}"
        if low >= high:
            one_threshold = f"one context needs more than {low:.4f}, another at most {high:.4f}"
        linear = exact(line.r_squared > 0.99 and abs(own / slope - 1) < 0.1, line.r_squared, own)
        independent = exact(all(math.isclose(joint[c], d * math.log(2)) for c, d in dimensions.items()))
        entropy, tasks = joint[self.contexts[-1]] / math.log(2), dimensions[self.contexts[-1]]
        decided = {
            "cross entropy is linear in the dimension, with a slope of -log 2 / tasks":
                (linear, f"slope {own:.5f}, exact {slope:.5f}, R² {line.r_squared:.5f}"),
            "one threshold on relative eigenvalues gives the dimension at every context":
                (exact(low < high, low, high), one_threshold),
            "the answers of the T visible tasks have an entropy of T log 2 (C.3)":
                (independent, f"exact: {entropy:.0f} log 2 of {tasks} at the longest"),
        }  # fmt: skip
        claims = [Claim.of(text, *verdict) for text, verdict in decided.items()]
        figures = {"losses": losses, "dimensions": dimensions, "spectra": spectra}
        tables = [measured, _fits(line, slope, losses, dimensions)]
        return Outcome(tables, claims, figures, plots=[spectra_plot(spectra)])


def _fits(line: LineFit, slope: float, losses: dict[int, float], dimensions: dict[int, int]) -> Table:
    rows = [
        ["CE = k ID + b: k", f"{line.slope:.5f}", f"{slope:.5f}"],
        ["b", f"{line.intercept:.4f}", f"{math.log(2):.4f}"],
        ["R²", f"{line.r_squared:.6f}", "1"],
    ]
    powers = {"CE = C0 + C / l^γ": losses, "ID = C0 + C / l^γ": {c: float(d) for c, d in dimensions.items()}}
    for name, values in powers.items():
        try:
            fit = fit_power(values)
        except ConfigError:
            rows.append([name, "no power law fits", ""])
            continue
        rows.append([f"{name}: C0", f"{fit.floor:.3f}", ""])
        rows += [["C", f"{fit.scale:.1f}", ""], ["γ", f"{fit.exponent:.2f}", ""]]
    return Table("Fits, with 95% intervals", ["fit", "ours", "exact"], rows)


def thresholds(relative: np.ndarray, dimension: int) -> tuple[float, float]:
    """Thresholds θ at which exactly ``dimension`` relative eigenvalues are ≥ θ: above the first, up to the second."""
    low = float(relative[dimension]) if dimension < len(relative) else 0.0
    return low, float(relative[dimension - 1]) if 0 < dimension <= len(relative) else math.inf
