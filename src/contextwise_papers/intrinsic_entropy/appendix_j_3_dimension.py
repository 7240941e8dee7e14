"""MLPs of the parity task, one for each context, trained past their lowest loss: intrinsic entropy, J.3, C.3 and Figure 17.

Each is measured twice: with the weights of its lowest validation loss (``best``) and with those of its last step (``last``).
The document trains until the training set is overfitted and does not say which weights it measures.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from pydantic import Field, field_validator
from safetensors.torch import load_file

from contextwise.base.runs import RunFolder
from contextwise.report import Table, written
from contextwise.runset import Run, RunSet
from contextwise.settings import CheckpointError, ConfigError, Lengths
from contextwise.stats import Estimate, mean_correlation, mean_estimate
from contextwise.training.checkpoints import WEIGHTS
from contextwise_papers.claims import LEAST_SEEDS, Claim, Verdict, above, all_agree, all_hold, exact, within
from contextwise_papers.intrinsic_entropy.fits import fit_line, fit_power
from contextwise_papers.intrinsic_entropy.parity import ParityMLP
from contextwise_papers.intrinsic_entropy.spectra import relative_eigenvalues
from contextwise_papers.intrinsic_entropy.synthetic import Parity
from contextwise_papers.intrinsic_entropy.synthetic.samples import Samples
from contextwise_papers.intrinsic_entropy.table_1_figures_6_7_parity import (
    OneModel,
    data_of,
    feature_eigenvalues,
    measure_contexts,
    opened,
    parity_runs,
    pieces,
    spectra_plot,
)
from contextwise_papers.item import Item, Outcome
from contextwise_papers.tables import Plot, points, seeds_behind, table_of

AT_ONCE = 12
"""Answers whose joint entropy is counted: 4,096 outcomes; the entropies of further groups of tasks are added."""
KINDS = ("best", "last")
CORRELATION, SLOPE, ENTROPY = 0.99, 0.1, 0.01
"""The least of a line, and relative differences to -log 2 / tasks and to T log 2 that count as none."""


@dataclass(frozen=True)
class Features:
    """A trained MLP at its context, with one kind of weights: its loss, nats, and relative eigenvalues, the largest first.

    ``answers`` is the entropy of the answers of all visible tasks, decoded from one context feature; ``output`` that of the one
    that is asked, nats.
    """

    loss: float
    relative: np.ndarray
    answers: float
    output: float


class ParityDimension(OneModel, name="parity_dimension"):
    """An MLP for each context; the spectrum of its context feature beside the number of visible tasks (Appendix J.3)."""

    contexts: Lengths = Field(min_length=4)

    @field_validator("recipe")
    @classmethod
    def _to_the_end(cls, recipe: dict[str, Any]) -> dict[str, Any]:
        training = recipe.get("training", {})
        if training.get("patience") is not None:
            raise ConfigError("training.patience stops before the training set is overfitted; remove it")
        if not training.get("evaluate_every"):
            raise ConfigError(
                "training.evaluate_every is not set, but the lowest validation loss is looked for; set it"
            )
        return recipe

    def run_set(self, folder: Path) -> RunSet:
        recipe = copy.deepcopy(self.recipe)
        training = recipe["training"]
        # Every validated step has its weights.
        training |= {"save_every": training["evaluate_every"], "keep_checkpoints": 10_000}
        runs = parity_runs(recipe, folder, self.name, self.seeds, context=self.contexts)
        parity = data_of(runs.runs[0]).parity()
        if blind := [context for context in self.contexts if not parity.visible_tasks(context)]:
            raise ConfigError(f"contexts has {blind[0]}, at which no task is visible; give longer ones")
        return runs

    def measure(self, item: Item, folder: Path) -> Outcome:
        trained = self.train(folder)
        runs = {c: trained.of_arm(self.name, {"data.synthetic.context": c}) for c in self.contexts}
        measured: dict[str, dict[int, list[Features]]] = {kind: {c: [] for c in self.contexts} for kind in KINDS}
        for context, of_seeds in runs.items():
            for run in of_seeds:
                model, samples = opened(run)  # as it was at the end
                measured["last"][context].append(measure_features(model, samples, context, self.samples))
                model.load_state_dict(weights_at(run, best_step(run)))
                measured["best"][context].append(measure_features(model, samples, context, self.samples))
        parity = samples.parity
        tables, claims = [*_losses(parity, measured), _turn(runs)], []
        for kind, features in measured.items():
            tables.append(_fits(kind, parity, features))
            claims += self._claims(kind, parity, features)
        figures = {"features": measured, "validation": {c: [_curve(run) for run in of] for c, of in runs.items()}}
        spectra = {c: features[0].relative for c, features in measured["best"].items()}
        return Outcome(tables, claims, figures, trained.paths, [spectra_plot(spectra), *_curves(runs)])

    def _claims(self, kind: str, parity: Parity, measured: dict[int, list[Features]]) -> list[Claim]:
        """The claims about one kind of weights, decided over seeds."""
        tasks = {c: parity.visible_tasks(c) for c in self.contexts}
        by_seed = [dict(zip(measured, of_seed, strict=True)) for of_seed in zip(*measured.values(), strict=True)]
        lines = [
            fit_line({c: float(t) for c, t in tasks.items()}, {c: f.loss for c, f in of_seed.items()})
            for of_seed in by_seed
        ]
        expected = -math.log(2) / parity.tasks
        slope = mean_estimate(np.array([line.slope.value / expected for line in lines]))
        correlation = mean_correlation([-line.correlation for line in lines])
        ranges = [one_threshold({c: thresholds(of_seed[c].relative, tasks[c]) for c in tasks}) for of_seed in by_seed]
        counts = all_agree((exact(low < high, low, high) for low, high in ranges), "seeds", LEAST_SEEDS)
        independent = exact(all(math.isclose(parity.answers_entropy(c), t * math.log(2)) for c, t in tasks.items()))
        shares = [[of_seed[c].answers / (t * math.log(2)) for c, t in tasks.items()] for of_seed in by_seed]
        outputs = [[of_seed[c].output / math.log(2) for c in tasks] for of_seed in by_seed]
        low, high = ranges[0]
        decided = {
            "cross entropy is linear in the dimension, with a slope of -log 2 / tasks":
                (all_hold([within(slope, 1 - SLOPE, 1 + SLOPE), above(correlation, CORRELATION)]),
                 f"slope over the exact one {slope:.3f}, −correlation {correlation:.4f}"),
            "one threshold on relative eigenvalues gives the dimension at every context":
                (counts, f"seed {self.seeds[0]}: above {low:.4f} for one context, at most {high:.4f} for another"),
            "the answers decoded from one context feature have an entropy of T log 2 (C.3)":
                (all_hold([independent, _all_one(shares)]),
                 f"{_span(shares)} of T log 2, T from {min(tasks.values())} to {max(tasks.values())}"),
            "the answer that is asked for has one of log 2, 1/T of that (C.3)":
                (_all_one(outputs), f"{_span(outputs)} of log 2"),
        }  # fmt: skip
        return [Claim.of(f"{kind} weights: {text}", *verdict) for text, verdict in decided.items()]


def _all_one(shares: list[list[float]]) -> Verdict:
    """Whether every share is 1, in each seed or in none."""
    ones = (exact(all(abs(share - 1) <= ENTROPY for share in of_seed), *of_seed) for of_seed in shares)
    return all_agree(ones, "seeds", LEAST_SEEDS)


def best_step(run: Run) -> int:
    """The step of the lowest validation loss of a finished run."""
    rows = RunFolder(run.folder).metrics("validation")
    return int(min(rows, key=lambda row: row["loss"])["step"])


def weights_at(run: Run, step: int) -> dict[str, torch.Tensor]:
    """The weights of a step that was validated."""
    file = RunFolder(run.folder).checkpoints / f"step-{step}" / WEIGHTS
    if not file.exists():
        raise CheckpointError(
            f"{run.folder} has no checkpoint of step {step}, at which its validation loss was lowest; remove the run folder, "
            "and run the same command again"
        )
    # A checkpoint is of the objective, which holds the model.
    return {name.removeprefix("model."): tensor for name, tensor in load_file(file).items()}


@torch.no_grad()
def measure_features(model: ParityMLP, samples: Samples, context: int, count: int) -> Features:
    """Loss, spectrum and entropies of a model at the context that it was trained on."""
    loss = measure_contexts(model, samples, [context], count)[context].loss
    relative = relative_eigenvalues(feature_eigenvalues(model, samples, context, count))
    visible, answers, asked = samples.parity.visible_tasks(context), [], []
    for numbers in pieces(count):
        input_ids = samples.batch(numbers, visible=context)["input_ids"].to(model.device)
        answers.append(model.answers(input_ids, visible).cpu().numpy())
        asked.append(model(input_ids).logits.argmax(-1).cpu().numpy()[samples.draw(numbers).tasks < visible])
    return Features(
        loss, relative, joint_entropy(np.concatenate(answers)), joint_entropy(np.concatenate(asked)[:, None])
    )


def joint_entropy(answers_NK: np.ndarray) -> float:
    """Entropy in nats of K answers together, each 0 or 1, from N samples.

    Counted for up to twelve answers at once; of more, the entropies of consecutive groups are added, which is no less than the
    entropy of all. With the correction of Miller and Madow (1955), (outcomes - 1) / 2N, without which it is too small.
    """
    total, count = 0.0, len(answers_NK)
    for start in range(0, answers_NK.shape[1], AT_ONCE):
        group_NK = answers_NK[:, start : start + AT_ONCE]
        outcomes = np.bincount(group_NK @ (1 << np.arange(group_NK.shape[1])))
        shares = outcomes[outcomes > 0] / count
        total += float(-(shares * np.log(shares)).sum()) + (len(shares) - 1) / (2 * count)
    return total


def thresholds(relative: np.ndarray, dimension: int) -> tuple[float, float]:
    """Thresholds θ at which exactly ``dimension`` relative eigenvalues are ≥ θ: above the first, up to the second."""
    low = float(relative[dimension]) if dimension < len(relative) else 0.0
    return low, float(relative[dimension - 1]) if 0 < dimension <= len(relative) else math.inf


def one_threshold(bounds: dict[int, tuple[float, float]]) -> tuple[float, float]:
    """Thresholds that count right at every context: above the first, up to the second; none if that is not larger."""
    return max(low for low, _ in bounds.values()), min(high for _, high in bounds.values())


def _losses(parity: Parity, measured: dict[str, dict[int, list[Features]]]) -> list[Table]:
    """Cross entropy beside the lowest, and the entropies beside the exact ones."""
    losses, entropies = [], []
    for context in measured["best"]:
        tasks = parity.visible_tasks(context)
        of_kinds = [measured[kind][context] for kind in KINDS]
        losses.append([context, tasks, parity.minimum_cross_entropy(context), *(mean_of(f, "loss") for f in of_kinds)])
        entropies.append(
            [context, tasks * math.log(2), parity.answers_entropy(context), *(mean_of(f, "answers") for f in of_kinds),
             *(mean_of(f, "output") for f in of_kinds)]
        )  # fmt: skip
    of_losses = ["context", "ID = T", ("lowest", ".4f"), *((f"model, {kind} weights", ".4f") for kind in KINDS)]
    of_entropies = ["context", ("T log 2", ".2f"), ("exact S", ".2f"), *((f"answers, {kind}", ".2f") for kind in KINDS),
                    *((f"output, {kind}", ".3f") for kind in KINDS)]  # fmt: skip
    seeds = seeds_behind(len(next(iter(measured["best"].values()))))
    return [
        table_of(f"Visible tasks and cross entropy, nats ({seeds})", of_losses, losses),
        table_of(f"Entropies of the answers to all tasks and of the output, nats ({seeds})", of_entropies, entropies),
    ]


def mean_of(features: Sequence[Features], name: str) -> Estimate:
    """The mean of a number over seeds, with its interval."""
    return mean_estimate(np.array([getattr(each, name) for each in features]))


def _span(shares: list[list[float]]) -> str:
    flat = [share for of_seed in shares for share in of_seed]
    return f"{min(flat):.4f} to {max(flat):.4f}"


def _curve(run: Run, kind: str = "validation") -> dict[int, float]:
    return {row["step"]: row["loss"] for row in RunFolder(run.folder).metrics(kind)}


def _turn(runs: dict[int, list[Run]]) -> Table:
    """Where the validation loss turns, and what it is there and at the end."""
    rows = []
    for context, of_seeds in runs.items():
        curves, training = [_curve(run) for run in of_seeds], [_curve(run, "train") for run in of_seeds]
        steps = [best_step(run) for run in of_seeds]
        lowest = [curve[step] for curve, step in zip(curves, steps, strict=True)]
        last = [curve[max(curve)] for curve in curves]
        rise = mean_estimate(np.subtract(last, lowest))
        rows.append(
            [context, mean(steps), max(curves[0]), mean(lowest), mean(last), rise, mean(c[max(c)] for c in training)]
        )
    columns = ["context", ("lowest at step", ",.0f"), ("of", ",.0f"), ("validation loss there", ".4f"),
               ("at the end", ".4f"), ("rise", "+.4f"), ("training loss at the end", ".4f")]  # fmt: skip
    return table_of("The turn of the validation loss, nats", columns, rows)


def _curves(runs: dict[int, list[Run]]) -> list[Plot]:
    validation = {f"{c} bits": points(_curve(of_seeds[0])) for c, of_seeds in runs.items()}
    training = {f"{c} bits": points(_curve(of_seeds[0], "train")) for c, of_seeds in runs.items()}
    return [
        Plot("Validation loss along training", "step", "nats", validation),
        Plot("Training loss along training", "step", "nats", training),
    ]


def _fits(kind: str, parity: Parity, measured: dict[int, list[Features]]) -> Table:
    losses = {c: mean(each.loss for each in features) for c, features in measured.items()}
    dimensions = {c: float(parity.visible_tasks(c)) for c in measured}
    line = fit_line(dimensions, losses)
    rows = [
        ["CE = k ID + b: k", f"{line.slope:.5f}", written(-math.log(2) / parity.tasks, ".5f")],
        ["b", f"{line.intercept:.4f}", f"{math.log(2):.4f}"],
        ["R²", f"{line.r_squared:.6f}", "1"],
    ]
    for name, values in {"CE = C0 + C / l^γ": losses, "ID = C0 + C / l^γ": dimensions}.items():
        try:
            fit = fit_power(values)
        except ConfigError:
            rows.append([name, "no power law fits", ""])
            continue
        rows.append([f"{name}: C0", written(fit.floor, ".3f"), ""])
        rows += [["C", written(fit.scale, ".1f"), ""], ["γ", f"{fit.exponent:.2f}", ""]]
    return Table(f"Fits to the mean over seeds, {kind} weights, with 95% intervals", ["fit", "ours", "exact"], rows)
