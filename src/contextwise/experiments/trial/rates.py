"""The learning rates of full-length runs, from short runs at several rates and one or two lengths.

The best rate of a short run is often not that of a long one. At each length a parabola is fitted to the losses of the best
rate and its neighbours, over the logarithm of the rate. The shift of its minimum for each doubling of the length, from the
shorter to the longer runs, is extrapolated to the full length.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from contextwise.base.estimates import listed

MOST_DOUBLINGS = 1.0
"""Whole runs take at least half and at most twice the rate at the lowest point of the longer runs."""
STEADY = 1.1
"""A best rate that moves by a smaller factor hardly moves."""
Losses = Mapping[float, float]
"""Factor of an arm's own rates -> loss of its short runs, nats per token; infinite where they diverged."""


def best_factor(losses: Losses) -> float:
    """The factor with the lowest loss; of several, the one nearest to 1, which is the recipe's own rate."""
    return min(losses, key=lambda factor: (losses[factor], abs(math.log(factor))))


@dataclass(frozen=True)
class RateRow:
    """Loss of an arm's short runs at one rate.

    Attributes:
        steps: of a run.
        factor: of the arm's own rates.
        loss: nats per token on the documents of the search, mean over its seeds; None where a run diverged.
        chosen: whether it is the lowest of the runs of this length.
    """

    arm: str
    steps: int
    factor: float
    learning_rate: float
    loss: float | None
    chosen: bool


@dataclass(frozen=True)
class Optimum:
    """The best rate of an arm's runs of one length.

    Attributes:
        steps: of a run.
        factor: with the lowest loss of those that were tried.
        lowest: factor at the lowest point of the parabola; None where it is not known, for the reason ``unknown``.
        leads: by how much less its loss is than that of the next lower and the next higher rate, nats per token; None where
            none was tried, infinite where it diverged.
    """

    steps: int
    factor: float
    lowest: float | None
    unknown: str
    leads: tuple[float | None, float | None]

    @property
    def at_edge(self) -> bool:
        """Whether no lower or no higher rate was tried, but others were."""
        return None in self.leads and self.leads != (None, None)

    @classmethod
    def of(cls, steps: int, losses: Losses, margin: float) -> "Optimum":
        """The best rate by the losses at a length.

        Args:
            margin: the least by which the loss must rise from the lowest point to twice its rate for that point to be known.
        """
        factors, best = sorted(losses), best_factor(losses)
        place = factors.index(best)
        below, above = place > 0, place + 1 < len(factors)
        leads = (
            losses[factors[place - 1]] - losses[best] if below else None,
            losses[factors[place + 1]] - losses[best] if above else None,
        )
        if None in leads:
            return cls(steps, best, None, "the best is at an edge of the search", leads)
        near = factors[place - 1 : place + 2]
        if not all(math.isfinite(losses[factor]) for factor in near):
            return cls(steps, best, None, "a rate next to the best diverges", leads)
        curvature, slope, _ = np.polyfit(np.log2(near), [losses[factor] for factor in near], 2)
        if curvature < margin:
            return cls(steps, best, None, "the rates next to the best differ by less than the margin", leads)
        return cls(steps, best, float(2 ** (-slope / (2 * curvature))), "", leads)


@dataclass(frozen=True)
class ChosenRate:
    """The rate of an arm's whole runs, and how the search came to it.

    Attributes:
        factor: of the arm's own rates, for whole runs of ``steps`` steps.
        optima: of the short runs, the longer ones last.
        margin: of the trial, nats per token.
    """

    arm: str
    factor: float
    steps: int
    optima: list[Optimum]
    margin: float

    IN_JSON: ClassVar = ("moved", "lead", "lead_in_margins", "at_edge", "sentence")

    @classmethod
    def of(cls, arm: str, steps: int, by_steps: Sequence[tuple[int, Losses]], margin: float) -> "ChosenRate":
        """The rate by the losses at each length, the longer runs last.

        Args:
            steps: of a whole run.
            by_steps: steps of the short runs, and their losses.
        """
        optima = [Optimum.of(number, losses, margin) for number, losses in by_steps]
        factor, doublings = optima[-1].factor, _doublings(optima)
        if doublings is not None:
            further = doublings * math.log2(steps / optima[-1].steps)
            lowest = optima[-1].lowest
            assert lowest is not None
            scaled = lowest * 2 ** min(max(further, -MOST_DOUBLINGS), MOST_DOUBLINGS)
            factor = float(f"{scaled:.3g}")
        return cls(arm, factor, steps, optima, margin)

    @property
    def moved(self) -> float | None:
        """The factor by which the best rate moves from the shorter to the longer runs; None where that is not known."""
        lowest = [each.lowest for each in self.optima]
        return None if _doublings(self.optima) is None else lowest[-1] / lowest[0]  # type: ignore[operator]

    @property
    def lead(self) -> float | None:
        """By how much less loss the best rate of the longer runs has than the better of its neighbours, nats per token.

        None without a neighbour that did not diverge.
        """
        leads = [lead for lead in self.optima[-1].leads if lead is not None and math.isfinite(lead)]
        return min(leads, default=None)

    @property
    def lead_in_margins(self) -> float | None:
        """The lead as a multiple of the trial's margin."""
        return None if self.lead is None else self.lead / self.margin

    @property
    def at_edge(self) -> bool:
        """Whether the best rate of the longer runs is the lowest or the highest that was tried."""
        return self.optima[-1].at_edge

    @property
    def sentence(self) -> str:
        """The rate of full-length runs, and how the best rate changes with the run length."""
        full = f"Full-length runs ({self.steps:,} steps) use {_times(self.factor)}."
        return " ".join(filter(None, (full, self._move_in_words)))

    @property
    def _move_in_words(self) -> str:
        shorter, longer = self.optima[0], self.optima[-1]
        if len(self.optima) < 2:
            return (
                ""
                if longer.steps >= self.steps
                else "Whether the best rate depends on the run length was not measured."
            )
        if self.moved is None:
            unknown = next((each for each in self.optima if each.lowest is None), longer)
            return (
                "Whether the best rate depends on the run length is not known: in runs of "
                f"{unknown.steps:,} steps, {unknown.unknown}."
            )
        hardly = " hardly" * (max(self.moved, 1 / self.moved) < STEADY)
        assert shorter.lowest is not None and longer.lowest is not None
        return (
            f"The best rate{hardly} changes with the run length: it is {_times(shorter.lowest)} at {shorter.steps:,} steps "
            f"and {_times(longer.lowest)} at {longer.steps:,}."
        )


def _times(factor: float) -> str:
    """A learning rate, as a multiple of that of the arm's recipe."""
    return f"{factor:.3g} × the recipe's rate"


def other_minima(losses: Losses, margin: float) -> list[float]:
    """The rates, at most one on each side of the best, where the loss has another minimum.

    There is a loss between the two that is higher than both by more than the margin.
    """
    factors = sorted(losses)
    best = factors.index(best_factor(losses))
    minima = []
    for side in (factors[best::-1], factors[best:]):
        highest = [max(losses[factor] for factor in side[: place + 1]) for place in range(len(side))]
        if lower := [factor for factor, most in zip(side, highest, strict=True) if losses[factor] < most - margin]:
            minima.append(min(lower, key=losses.__getitem__))
    return minima


def doubtful_rates(chosen: Sequence[ChosenRate], tried: Sequence[RateRow], margin: float) -> list[str]:
    """Notes: which arms' best rates are at an edge of the search, and which lead another rate by less than the margin."""
    edges = [each.arm for each in chosen if each.at_edge]
    leads = {each.arm: each.lead for each in chosen}
    ties = [f"{arm} ({lead:.4f})" for arm, lead in leads.items() if lead is not None and lead < margin]
    notes = []
    for each in chosen:
        rows = [row for row in tried if (row.arm, row.steps) == (each.arm, each.optima[-1].steps)]
        losses = {row.factor: math.inf if row.loss is None else row.loss for row in rows}
        if minima := other_minima(losses, margin):
            lowest, others = f"{each.optima[-1].factor:.3g}", listed([f"{factor:.3g}" for factor in minima])
            notes.append(
                f"The loss of {each.arm} has two minima in the search, at {lowest} (the lowest) and {others} "
                "× the recipe's rate: between them it is higher by more than the margin. More seeds (rates.seeds=3) show "
                "whether that is chance."
            )
    if edges:
        notes.append(
            f"The best learning rate of {listed(edges)} is at an edge of the search, so a better one may exist. Give other "
            "factors (rates.factors)."
        )
    if ties:
        notes.append(
            "In the search the loss at the best learning rate is lower than at a neighbouring rate by less than the margin "
            f"for {listed(ties)}. In full-length runs the neighbour may be better, and by much more: search with "
            "rates.shares=[1] (full-length runs) or rates.seeds=3 to find out."
        )
    return notes


def _doublings(optima: Sequence[Optimum]) -> float | None:
    """By how many doublings the best rate moves with each doubling of the length; None where that is not known."""
    first, last = optima[0], optima[-1]
    if first.lowest is None or last.lowest is None or first.steps >= last.steps:
        return None
    return math.log2(last.lowest / first.lowest) / math.log2(last.steps / first.steps)
