"""Results of a trial: the looks of each comparison, the decision in a sentence, and the seeds that a decision would need."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from contextwise.base.estimates import NOT_IN_JSON, Estimate, count
from contextwise.comparison.decided import Decided
from contextwise.comparison.speedup import Trend
from contextwise.experiments.trial.arms import Length
from contextwise.experiments.trial.search import ChosenRate, RateRow
from contextwise.training.recipe import few_steps


@dataclass(frozen=True)
class AlongBudgets:
    """How an arm's difference moves along the budgets; each interval holds after every seed with the trial's confidence."""

    arm: str
    reference: str
    equal: str
    trend: Trend | None  # before the seeds allow an interval
    speedups: dict[int, Estimate | None]  # budget -> how many times the arm's compute the reference needs for its loss

    @property
    def sentences(self) -> list[str]:
        """The trend, the crossing, and what the arm is worth at each budget."""
        if self.trend is None:
            return []
        pair = f"{self.arm} − {self.reference}"
        words = f"Each doubling of the budget changes {pair} by {self.trend.slope:+.4f} nats per token"
        crossing = self.trend.crossing
        zero = "where it is zero is not determined" if crossing is None else f"it is zero at {crossing:count} tokens"
        unit = "training time" if self.equal == "time" else "FLOPs"
        worth = [
            f"At {count(budget)} tokens {self.arm} is worth {speedup:.3f} times its {unit} of {self.reference}."
            for budget, speedup in self.speedups.items()
            if speedup is not None
        ]
        return [f"{words}; {zero}.", *worth]


@dataclass(frozen=True, repr=False, kw_only=True)
class TrialResult(Decided):
    """Everything a trial has found so far.

    ``losses``: arm -> budget -> loss of each seed on the documents of the decision, nats per token; ``training_seconds``: the
    same of the measured training times. ``rates`` are the short runs of the search, empty if the rates are fixed.
    """

    trial: str  # its name
    stopped: str  # decided, diverged (all that are open), seeds; empty while it runs
    equal: str
    along_budgets: list[AlongBudgets]
    lengths: list[Length]
    parameters: dict[str, int]
    losses: dict[str, dict[int, list[float]]]
    training_seconds: dict[str, dict[int, list[float]]]
    rates: list[RateRow]
    chosen_rates: list[ChosenRate]
    unchanged: dict[str, Any] = field(default_factory=dict)  # settings that all arms share
    path: Path = field(default=Path(), metadata=NOT_IN_JSON)

    IN_JSON: ClassVar = ("sentences", "seeds")

    @property
    def trained_for(self) -> float:
        """Seconds of training of all runs, without those of the search."""
        return sum(sum(times) for of in self.training_seconds.values() for times in of.values())

    @property
    def seeds(self) -> int:
        """The most seeds of a comparison."""
        return max((len(each.looks) for each in self.comparisons), default=0)

    @property
    def budgets(self) -> list[int]:
        return list(dict.fromkeys(length.budget for length in self.lengths))

    @property
    def answer(self) -> str:
        """The first comparison with its interval, and how many there are."""
        if not self.comparisons:
            return f"{self.trial}, no seed is trained yet"
        return f"{self.trial}: {self.in_short}"

    @property
    def findings(self) -> list[str]:
        """The decision of each comparison, and what the budgets say together."""
        along = [sentence for each in self.along_budgets for sentence in each.sentences]
        return [*(each.sentence for each in self.comparisons), *along]

    @property
    def sentences(self) -> list[str]:
        """The findings, and a warning about runs of few steps."""
        warning = few_steps(length.steps for length in self.lengths)
        return [*self.findings, *([warning] if warning else [])]


@dataclass(frozen=True)
class TrialPlan:
    """What a trial will cost."""

    lengths: list[Length]
    parameters: dict[str, int]
    learning_rates: dict[str, float]
    confidence: float
    seeds: int
    search_runs: int  # short runs of the search at its factors
    seed_seconds: float  # wall time of one seed of all arms at all budgets, scoring included
    search_seconds: float
    search_flops: float
    notes: list[str] = field(default_factory=list)
    widening_runs: int = 0  # the most short runs that follow where a best rate is at an edge

    IN_JSON: ClassVar = ("runs", "flops", "warning")

    @property
    def warning(self) -> str:
        """About runs of few steps; empty if there are none."""
        return few_steps(length.steps for length in self.lengths)

    @property
    def flops(self) -> float:
        """FLOPs of the search and all seeds."""
        return self.search_flops + self.seeds * sum(each.flops for each in self.lengths)

    @property
    def runs(self) -> int:
        return self.search_runs + self.seeds * len(self.lengths)
