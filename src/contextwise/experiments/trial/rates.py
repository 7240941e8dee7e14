"""The learning rates of whole runs: the best of short runs at several rates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from contextwise.base.estimates import listed

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
        chosen: whether it is the lowest.
    """

    arm: str
    steps: int
    factor: float
    learning_rate: float
    loss: float | None
    chosen: bool


@dataclass(frozen=True)
class ChosenRate:
    """The rate of an arm's whole runs.

    Attributes:
        factor: of the arm's own rates, with the lowest loss of those that were tried.
        steps: of a whole run.
        at_edge: whether no lower or no higher rate was tried, but others were.
        lead: by how much less its loss is than that of the better of its neighbours, nats per token; None without a neighbour
            that did not diverge.
    """

    arm: str
    factor: float
    steps: int
    at_edge: bool
    lead: float | None

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
            "rates.share=1 (full-length runs) or rates.seeds=3 to find out."
        )
    return notes
