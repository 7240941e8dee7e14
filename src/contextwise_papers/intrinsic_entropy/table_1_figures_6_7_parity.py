"""Trained models beside the exact figures of the parity task: Table 1 and Figures 6 and 7 of the intrinsic-entropy document.

Legend of shapes: N samples, F channels of the context feature.
"""

import math
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from pydantic import Field

from contextwise.models import load_config
from contextwise.models.loading import load_as
from contextwise.report import as_json, written
from contextwise.runset import RecipeValues, Run, RunSet, RunSetSettings
from contextwise.settings import ConfigError, Lengths, Seeds
from contextwise.stats import NORMAL, Estimate, mean_correlation, mean_estimate, plus_minus, with_seeds
from contextwise.training import VALIDATION_SEED
from contextwise_papers.claims import LEAST_SEEDS, Claim, above, all_agree, all_hold, exact
from contextwise_papers.intrinsic_entropy.fits import fit_line
from contextwise_papers.intrinsic_entropy.parity import ParityMLP, ParityTransformer
from contextwise_papers.intrinsic_entropy.parity_kinds import SyntheticData
from contextwise_papers.intrinsic_entropy.spectra import intrinsic_entropies, relative_eigenvalues, shared_rank
from contextwise_papers.intrinsic_entropy.synthetic import ParityData
from contextwise_papers.intrinsic_entropy.synthetic.samples import Samples
from contextwise_papers.item import Item, ItemMeasure, Outcome
from contextwise_papers.tables import Plot, point, points, seeds_behind, table_of

_AT_ONCE = 4096
CORRELATION = 0.97
"""Of a line, at least, as in the document's Figure 1."""
LINEAR_FROM = 70 / 208
"""Share of the channels from which on every N is said to give a line."""


@dataclass(frozen=True)
class ContextLoss:
    """A trained model at one context: its mean cross entropy in nats, and its standard error over samples.

    ``excess`` is the loss minus the mean of the lowest possible loss on the same samples, without the noise of how many samples
    are of which kind; ``minimum`` is the exact lowest cross entropy.
    """

    loss: float
    standard_error: float
    excess: float
    minimum: float

    def at(self, loss: float) -> Estimate:
        """A loss, such as the mean over seeds, with this one's interval over samples."""
        return plus_minus(loss, NORMAL * self.standard_error, method="normal")


@torch.no_grad()
def measure_contexts(model: Any, samples: Samples, contexts: list[int], count: int) -> dict[int, ContextLoss]:
    """Cross entropy of the same ``count`` samples with only the nearest bits visible, for each number of bits."""
    parity, measured = samples.parity, {}
    for context in contexts:
        nats, hidden = [], []
        for numbers in pieces(count):
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
    for numbers in pieces(count):
        batch = samples.batch(numbers, visible=context)
        feature = model.context_feature(batch["input_ids"].to(model.device), **layer).double().cpu().numpy()
        total, products = total + feature.sum(0), products + feature.T @ feature
    mean = total / count
    covariance = products / count - np.outer(mean, mean)
    return np.linalg.eigvalsh(covariance)[::-1].clip(min=0)


def pieces(count: int) -> list[np.ndarray]:
    """Numbers of ``count`` samples in parts that are passed through a model at once."""
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
    """A measure of one trained model at several contexts; with several seeds, of as many models."""

    name: str
    recipe: RecipeValues
    contexts: Lengths = Field(min_length=1)
    seeds: Seeds = Field(default=[0], min_length=1, description="each a model; one decides no claim")
    samples: int = Field(default=65_536, ge=1000, description="held-out samples that are measured")

    def run_set(self, folder: Path) -> RunSet:
        runs = parity_runs(self.recipe, folder, self.name, self.seeds)
        data = data_of(runs.runs[0])
        bits = data.context or data.bits
        if beyond := [context for context in self.contexts if context > bits]:
            raise ConfigError(f"contexts has {beyond[0]}, but the inputs have {bits} bits")
        return runs


class ParityTable(OneModel, name="parity_table"):
    """Cross entropy of a trained model beside the lowest possible, at several contexts (Appendix C.4, Table 1)."""

    tolerance: float = Field(gt=0, description="nats above the lowest that count as reached")

    def measure(self, item: Item, folder: Path) -> Outcome:
        by_seed = []
        runs = self.train(folder)
        for run in runs.runs:
            model, samples = opened(run)
            by_seed.append(measure_contexts(model, samples, self.contexts, self.samples))
        lowest = {context: loss.minimum for context, loss in by_seed[0].items()}
        losses = {
            c: with_seeds(by_seed[0][c].at(_mean(by_seed, c, "loss")), _values(by_seed, c, "loss")) for c in lowest
        }
        printed_pairs = zip(item.printed["model"], item.printed["minimum"], strict=True)
        printed = dict(zip(item.printed["contexts"], printed_pairs, strict=True))
        same_task = samples.parity.bits == item.printed["bits"]
        head = ["context", ("lowest", ".4f"), ("model", ".4f"), ("excess", "+.4f")]
        paper = (("paper: model", ".4f"), ("paper: lowest", ".4f")) if same_task else ()
        beside = {c: printed.get(c, (None, None)) if same_task else () for c in lowest}
        rows = [[c, low, losses[c], _mean(by_seed, c, "excess"), *beside[c]] for c, low in lowest.items()]
        title = f"Cross entropy of the answer, nats ({seeds_behind(len(by_seed))})"
        tables = [table_of(title, [*head, *paper], rows)]
        if not same_task:
            title = f"The paper's own, at {item.printed['bits']} bits and {item.printed['tasks']} tasks"
            rows = [[c, low, own, own - low] for c, (own, low) in printed.items()]
            tables.append(table_of(title, head, rows))
        gaps = [{c: loss.loss - loss.minimum for c, loss in measured.items()} for measured in by_seed]
        largest = [max(of_seed.values(), key=abs) for of_seed in gaps]
        claim = Claim.of(
            f"at every context the trained model is within {self.tolerance:g} nats of the lowest cross entropy",
            all_agree((exact(abs(gap) <= self.tolerance, gap) for gap in largest), "seeds", LEAST_SEEDS),
            f"at most {written(max(largest, key=abs), '+.4f')} nats",
        )
        plot = Plot(
            "Cross entropy of the answer", "visible bits", "nats", {"model": points(losses), "lowest": points(lowest)}
        )
        return Outcome(tables, [claim], {"contexts": by_seed}, runs.paths, [plot])


def _values(by_seed: list[dict[int, ContextLoss]], context: int, name: str) -> np.ndarray:
    return np.array([getattr(measured[context], name) for measured in by_seed])


def _mean(by_seed: list[dict[int, ContextLoss]], context: int, name: str) -> float:
    return float(_values(by_seed, context, name).mean())


class ParityEntropy(OneModel, name="parity_entropy"):
    """Whether cross entropy is linear in the intrinsic entropy of the leading N directions (Figures 6 and 7).

    Figure 6 is the model, with the context feature in its middle. The source takes a middle representation (Section 4.3,
    Appendix C.4) without saying which: here it is the state after half of the blocks, rounded up, at the task token. The state
    that the answer is read from is shown beside it.
    """

    def measure(self, item: Item, folder: Path) -> Outcome:
        losses: list[dict[int, float]] = []
        layers: dict[str, list[dict[int, np.ndarray]]] = {}
        runs = self.train(folder)
        for run in runs.runs:
            model, samples = opened(run)
            measured = measure_contexts(model, samples, self.contexts, self.samples)
            losses.append({context: loss.loss for context, loss in measured.items()})
            for name, layer in context_features(model).items():
                spectra = {c: feature_eigenvalues(model, samples, c, self.samples, **layer) for c in self.contexts}
                layers.setdefault(name, []).append(spectra)
        outcome = Outcome([], [], {"losses": losses}, runs.paths)
        for name, of_seeds in layers.items():
            self._add(outcome, name, of_seeds, losses)
        return outcome

    def _add(
        self, outcome: Outcome, layer: str, spectra: list[dict[int, np.ndarray]], losses: list[dict[int, float]]
    ) -> None:
        """Add the lines over the entropies of one layer's features, seed by seed, to the outcome."""
        width, shared = len(spectra[0][self.contexts[0]]), min(map(shared_rank, spectra))
        entropies = [{c: intrinsic_entropies(values) for c, values in of_seed.items()} for of_seed in spectra]
        lines = {
            n: [
                fit_line({c: float(s[n - 1]) for c, s in of_seed.items()}, loss)
                for of_seed, loss in zip(entropies, losses, strict=True)
            ]
            for n in range(2, shared + 1)
        }
        falling = {n: mean_correlation([-line.correlation for line in of_n]) for n, of_n in lines.items()}
        first, least = first_lasting(falling, CORRELATION), math.ceil(LINEAR_FROM * width)
        chosen = sorted({2, 5, 10, 20, 40, 70, 100, 200, least, shared} & set(lines) | ({first} if first else set()))
        slopes = {n: mean_estimate(np.array([line.slope.value for line in lines[n]])) for n in chosen}
        outcome.tables.append(
            table_of(
                f"Cross entropy against S_N over {len(self.contexts)} contexts ({layer}, {width} channels, "
                f"{seeds_behind(len(losses))})",
                ["N", ("−correlation", ".4f"), ("R²", ".4f"), ("slope", ".5f")],
                [[n, falling[n], mean([line.r_squared for line in lines[n]]), slopes[n]] for n in chosen],
            )
        )
        claimed = {n: correlation for n, correlation in falling.items() if n >= least}
        evidence = f"from N = {first} on, of {shared}" if first else f"at no N up to {shared} and from it on"
        if claimed:
            worst = min(claimed, key=lambda n: claimed[n].value)
            evidence += f"; least {claimed[worst]:.3f}, at N = {worst}"
        outcome.claims.append(
            Claim.of(
                f"{layer}: the loss falls linearly with S_N (−correlation above {CORRELATION:g}) for every N of a "
                f"share of {LINEAR_FROM:.2f} of the channels or more, here {least}",
                all_hold(above(correlation, CORRELATION) for correlation in claimed.values()),
                evidence,
            )
        )
        against = {
            f"N = {n}": sorted(
                (point(float(entropies[0][c][n - 1]), losses[0][c]) for c in self.contexts), key=lambda p: p["x"]
            )
            for n in chosen
        }
        relative = {context: relative_eigenvalues(values) for context, values in spectra[0].items()}
        correlations = {"over seeds": points(falling)}
        outcome.plots += [
            replace(spectra_plot(relative), title=f"Relative eigenvalues, {layer}"),
            Plot(f"Cross entropy against S_N, {layer}", "S_N, nats", "nats", against),
            Plot(f"Line by N, {layer}", "N", "−correlation", correlations, levels={"a line": CORRELATION}),
        ]
        outcome.figures[layer] = as_json({"eigenvalues": spectra, "correlations": falling})


def context_features(model: ParityTransformer | ParityMLP) -> dict[str, dict[str, int]]:
    """Layer -> arguments of ``context_feature``: the middle representation and the state that the answer is read from."""
    if isinstance(model, ParityMLP):
        return {"context feature": {}}
    middle = -(-model.config.num_hidden_layers // 2)
    return {f"after block {middle} (middle)": {"blocks": middle}, "last state": {}}


def first_lasting(correlations: dict[int, Estimate], bound: float) -> int | None:
    """The smallest N from which on every correlation is above the bound, its whole interval; None if the last one is not."""
    lasting = takewhile(lambda n: above(correlations[n], bound).holds, sorted(correlations, reverse=True))
    return min(lasting, default=None)
