"""The search of a trial over learning rates: short runs of all arms at several factors of their own rates.

They have a seed and documents that no decision uses.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from contextwise.base.errors import NotFiniteError, TrainingError
from contextwise.base.estimates import listed
from contextwise.base.runs import RunFolder
from contextwise.experiments.grid import rate_settings
from contextwise.experiments.run_set import RunSet
from contextwise.experiments.trial.arms import Arms, Length, length_settings, total_nats, whole_steps
from contextwise.experiments.trial.documents import SEARCH_SHARE
from contextwise.experiments.trial.settings import RateSearch

SEARCH_SEED = 1_000_000
"""Seed of the search; those of the decision are smaller."""
LossOf = dict[tuple[str, float], float]
"""Arm and factor of its rates -> loss of its short runs."""

Losses = Mapping[float, float]
"""Factor of an arm's own rates -> loss of its short runs, nats per token; infinite where they diverged."""


def best_factor(losses: Losses) -> float:
    """The factor with the lowest loss; of several, the one nearest to 1, which is the recipe's own rate."""
    return min(losses, key=lambda factor: (losses[factor], abs(math.log(factor))))


@dataclass(frozen=True)
class RateRow:
    """An arm's short runs at one rate."""

    arm: str
    steps: int
    factor: float  # of the arm's own rates
    learning_rate: float
    loss: float | None  # nats per token on the documents of the search; None where the run diverged
    chosen: bool


@dataclass(frozen=True)
class ChosenRate:
    """The rate of an arm's whole runs."""

    arm: str
    factor: float  # of the arm's own rates, with the lowest loss of those that were tried
    steps: int  # of a whole run
    at_edge: bool  # no lower or no higher rate was tried, but others were
    lead: (
        float | None
    )  # of its loss before that of its better neighbour, nats per token; None if all neighbours diverged

    IN_JSON: ClassVar = ("sentence",)

    @classmethod
    def of(cls, arm: str, steps: int, losses: Losses) -> "ChosenRate":
        """The best rate by the losses of the short runs; ``steps`` of a whole one."""
        factors, best = sorted(losses), best_factor(losses)
        place = factors.index(best)
        beside = factors[max(0, place - 1) : place] + factors[place + 1 : place + 2]
        leads = [losses[factor] - losses[best] for factor in beside if math.isfinite(losses[factor])]
        return cls(arm, best, steps, 0 < len(beside) < 2, min(leads, default=None))

    @property
    def sentence(self) -> str:
        """The rate of full-length runs."""
        return f"Full-length runs ({self.steps:,} steps) use {self.factor:.3g} × the recipe's rate."


def doubtful_rates(chosen: Sequence[ChosenRate], margin: float) -> list[str]:
    """Notes: which arms' best rates are at an edge of the search, and which lead another rate by less than the margin."""
    edges = [each.arm for each in chosen if each.at_edge]
    ties = [f"{each.arm} ({each.lead:.4f})" for each in chosen if each.lead is not None and each.lead < margin]
    notes = []
    if edges:
        notes.append(
            f"The best learning rate of {listed(edges)} is at an edge of the search, so a better one may exist. Give other "
            "factors (rates.factors)."
        )
    if ties:
        notes.append(
            "In the search the loss at the best learning rate is lower than at a neighbouring rate by less than the margin "
            f"for {listed(ties)}. In full-length runs the neighbour may be better, and by much more: search with "
            "rates.share=1 (full-length runs) to find out."
        )
    return notes


class Search:
    """The search over the rates of a trial's arms at the smallest budget; it has no runs if the rates are fixed."""

    def __init__(self, arms: Arms, lengths: list[Length]) -> None:
        self.arms, self.settings = arms, arms.settings.rates or RateSearch()
        searched = lengths if arms.settings.rates else []
        self.lengths = [length for length in searched if length.budget == arms.budgets[0]]

    @property
    def runs(self) -> int:
        """Short runs at the factors of the settings."""
        return len(self.settings.factors) * len(self.lengths)

    @property
    def widening_runs(self) -> int:
        """The most short runs that follow where a best rate is at an edge."""
        widened = len(self.settings.factors) > 1
        return 2 * widened * self.settings.widenings * len(self.lengths)

    @property
    def flops(self) -> float:
        """FLOPs of the short runs at the factors of the settings."""
        flops = sum(length.flops for length in self.lengths)
        return self.settings.share * len(self.settings.factors) * flops

    def seconds(self, factors: int) -> float:
        """Wall time of the runs at so many factors, scoring included."""
        jobs = min(self.arms.settings.executor.jobs, len(self.lengths) * factors)
        each = sum(
            self.settings.share * length.seconds / jobs + length.scoring / SEARCH_SHARE for length in self.lengths
        )
        return factors * each

    def short_runs(self, lengths: list[Length], factors: Sequence[float]) -> dict[tuple[str, float], RunSet]:
        """The short runs: (arm, factor) -> its run."""
        result = {}
        for length in lengths:
            recipe = self.arms.recipes[length.arm]
            tokens = whole_steps(self.settings.share * length.tokens, recipe)
            shorter = [
                f"training.{name}={max(1, int(value * tokens / length.tokens))}"  # the same share of a shorter run
                for name in ("warmup_steps", "decay_steps")
                if (value := getattr(recipe.training, name)) >= 1
            ]
            for factor in factors:
                own = [*length_settings(tokens), *rate_settings(recipe, factor), *shorter]
                named = {length.arm: (length.arm, own)}
                result[length.arm, factor] = self.arms.runs_of(SEARCH_SEED, named, prefix="rates")
        return result

    def run(self) -> tuple[list[RateRow], list[ChosenRate]]:
        """Train and score the short runs; returns their losses by rate, and the rate of each arm's whole runs.

        All arms get the same factors, more where one is at an edge.
        """
        losses = self._losses() if self.lengths else {}
        rows, chosen = list[RateRow](), list[ChosenRate]()
        for length in self.lengths:
            rate, steps = self.arms.recipes[length.arm].learning_rate, self.arms.short_steps(length)
            mine = {factor: loss for (arm, factor), loss in losses.items() if arm == length.arm}
            best = best_factor(mine)
            for factor, loss in sorted(mine.items()):
                shown = loss if math.isfinite(loss) else None
                rows.append(RateRow(length.arm, steps, factor, rate * factor, shown, factor == best))
            chosen.append(ChosenRate.of(length.arm, length.steps, mine))
        return rows, chosen

    def _losses(self) -> LossOf:
        """The losses of the short runs, with the factors that were added."""
        factors, losses = list(self.settings.factors), LossOf()
        for widening in range(self.settings.widenings + 1):
            self.train(factors, losses)
            best = {best_factor({factor: losses[each.arm, factor] for factor in factors}) for each in self.lengths}
            edges = [(factors[0], factors[1]), (factors[-1], factors[-2])] if len(factors) > 1 else []
            further = [edge * edge / inner for edge, inner in edges if edge in best]
            if not further or widening == self.settings.widenings:
                break
            factors = sorted([*factors, *further])
        return losses

    def train(self, factors: list[float], losses: LossOf) -> None:
        """Train the short runs at the factors that have no loss yet, and add their losses."""
        missing = [factor for factor in factors if (self.lengths[0].arm, factor) not in losses]
        runs = self.short_runs(self.lengths, missing)
        together = RunSet(self.arms.path, [run for each in runs.values() for run in each.runs])
        together.train_missing(self.arms.settings.executor, may_diverge=True)
        documents = self.arms.documents
        for rate, run_set in runs.items():
            loss, folder = math.inf, run_set.runs[0].folder
            if RunFolder(folder).finished:  # a rate at which training diverges is no choice
                with contextlib.suppress(NotFiniteError):
                    nats, tokens = total_nats(documents.evaluation(folder, int(documents.searched[-1]) + 1))
                    loss = float(nats[documents.searched].sum() / tokens[documents.searched].sum())
            losses[rate] = loss
        for length in self.lengths:
            if not any(math.isfinite(losses[length.arm, factor]) for factor in factors):
                raise TrainingError(f"{length.arm} diverges at every learning rate that was tried; give lower ones")
