"""Claims of the source documents, and the rule by which they are decided: holds, does not hold, or undecided.

A claim holds where the whole 95% interval of an estimate is on the claim's side of a bound. It does not hold where the whole
interval is on the other side. It is undecided where the interval contains the bound, and without a decisive number: no interval
(one seed or one document), fewer than six documents, a value that is not a number, too few observations. Exact numbers, such as
counts, need no interval.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pydantic import Field

from contextwise.base.config import Settings
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import Estimate

VERDICTS = {True: "holds", False: "does not hold", None: "undecided"}
LEVEL = 0.05
"""Level of a significance test."""
LEAST_SEEDS = 2


class Better(Settings):
    """A claim: one model (or row of a table) is better than another."""

    text: str
    better: str
    than: str

    @property
    def names(self) -> list[str]:
        return [self.better, self.than]

    def decided(self, verdict: "Verdict", difference: str, where: str = "") -> "Claim":
        """The claim with its verdict and a difference, the better one minus the other; ``where`` ends its text."""
        return Claim.of(self.text + where, verdict, f"{self.better} minus {self.than}{difference}")


class Growing(Settings):
    """A claim: how much better one model is than another grows from pair to pair."""

    text: str
    pairs: list[tuple[str, str]] = Field(min_length=2, description="better and than")

    @property
    def names(self) -> list[str]:
        return [name for pair in self.pairs for name in pair]


class Kept(Settings):
    """A claim: a row keeps most of the gain of another."""

    text: str
    part: str
    base: str
    best: str
    printed: float | None = None

    @property
    def names(self) -> list[str]:
        return [self.part, self.base, self.best]


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds; None where that is undecided, with the reason."""

    holds: bool | None
    reason: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence of the document, whether it holds here (None: undecided), and the numbers that decide it."""

    text: str
    holds: bool | None
    evidence: str

    @classmethod
    def of(cls, text: str, verdict: Verdict, evidence: str = "") -> "Claim":
        """A claim with its verdict; the reason of an undecided one follows the evidence."""
        return cls(text, verdict.holds, "; ".join(part for part in (evidence, verdict.reason) if part))

    def over_seeds(self, seeds: int) -> "Claim":
        """The claim about models that were trained with so many seeds; undecided with one, whose interval covers no other."""
        if seeds >= LEAST_SEEDS or self.holds is None:
            return self
        return Claim.of(self.text, undecided("one seed decides nothing about trained models"), self.evidence)

    def without_refutation(self, reason: str) -> "Claim":
        """The claim, undecided where it would not hold."""
        if self.holds is not False:
            return self
        return replace(self, holds=None, evidence=f"{reason}: {self.evidence}")


def undecided(reason: str) -> Verdict:
    """The verdict of a claim that nothing decides."""
    return Verdict(None, reason)


def above(estimate: Estimate, bound: float = 0.0) -> Verdict:
    """Whether an estimate is above a bound."""
    problem = _problem(estimate)
    if problem or math.isnan(bound):
        return undecided(problem or "the bound is not a number")
    low, high = estimate.limits
    if low > bound:
        return Verdict(True)
    return Verdict(False) if high < bound else undecided(f"the interval contains {bound:g}")


def below(estimate: Estimate, bound: float = 0.0) -> Verdict:
    """Whether an estimate is below a bound."""
    verdict = above(estimate, bound)
    return verdict if verdict.holds is None else Verdict(not verdict.holds)


def within(estimate: Estimate, low: float, high: float) -> Verdict:
    """Whether an estimate lies between two bounds: its whole interval does."""
    return all_hold([above(estimate, low), below(estimate, high)])


def contains(estimate: Estimate, value: float) -> Verdict:
    """Whether an estimate agrees with a value: its interval contains it."""
    problem = _problem(estimate)
    if problem or math.isnan(value):
        return undecided(problem or "the value to compare to is not a number")
    low, high = estimate.limits
    return Verdict(low <= value <= high)


def higher(estimate: Estimate, other: Estimate) -> Verdict:
    """Whether one estimate is higher than another that it is not paired with: their intervals do not overlap."""
    problem = _problem(estimate) or _problem(other)
    if problem:
        return undecided(problem)
    (low, high), (other_low, other_high) = estimate.limits, other.limits
    if low > other_high:
        return Verdict(True)
    return Verdict(False) if high < other_low else undecided("the intervals overlap")


def _problem(estimate: Estimate) -> str:
    """Why an estimate decides nothing; empty if it may."""
    if math.isnan(estimate.value):
        return "the value is not a number"
    return "there is no interval" if any(map(math.isnan, estimate.limits)) else estimate.too_few


def exact(holds: bool, *numbers: float) -> Verdict:
    """A condition on exact numbers, which are the same at every repetition."""
    if any(math.isnan(number) for number in numbers):
        return undecided("a value is not a number")
    return Verdict(bool(holds))


def significant(effect: float, p: float) -> Verdict:
    """Whether an effect is above zero, by the p value of a one-sided test."""
    if math.isnan(effect) or math.isnan(p):
        return undecided("the test has no result")
    if effect <= 0:
        return Verdict(False)
    return Verdict(True) if p < LEVEL else undecided(f"p is not below {LEVEL:g}")


def all_hold(verdicts: Iterable[Verdict]) -> Verdict:
    """Of a claim that has several parts: holds where all hold, does not hold where one does not."""
    every = list(verdicts)
    if any(verdict.holds is False for verdict in every):
        return Verdict(False)
    reasons = [verdict.reason for verdict in every if verdict.holds is None]
    if not every:
        return undecided("there is nothing to decide it by")
    return undecided(reasons[0]) if reasons else Verdict(True)


def all_agree(verdicts: Iterable[Verdict], what: str, least: int = 1) -> Verdict:
    """Of a claim that is repeated: decided where ``least`` or more repetitions (``what``: seeds, partitions) agree."""
    every = list(verdicts)
    if len(every) < least:
        return undecided(f"it takes {least} {what} or more, and there are {len(every)}")
    if len({verdict.holds for verdict in every}) > 1:
        return undecided(f"the {what} do not agree")
    return every[0]


def check_names(named: Mapping[str, Iterable[str]], known: Iterable[str], what: str = "") -> None:
    """Raise a ConfigError where a setting uses a name that is not known; ``what`` it is of, such as "the row "."""
    known = list(known)
    for setting, names in named.items():
        for name in names:
            if name not in known:
                raise ConfigError(f"{setting} names {what}{name!r}, which is none of {', '.join(known)}")


def percentage_points(difference: Estimate) -> str:
    """A difference of shares: ``+1.20 [-0.35, +2.75] points``."""
    return f"{difference.scaled(100):+.2f} points"
