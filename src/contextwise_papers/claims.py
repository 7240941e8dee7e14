"""Claims of the source documents, and the rule by which they are decided: holds, does not hold, or undecided.

A claim is undecided where an interval contains its bound, and without a decisive number: no interval, fewer than six documents,
fewer than three seeds where seeds are compared. The claims of an item share the error of 5%: a verdict by the 95% interval that
is printed is kept only if the wider one decides too (:func:`share_error`). The number of seeds is set before the runs, so
intervals are Student's t and need no sequence.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pydantic import Field

from contextwise.base.estimates import NOT_IN_JSON
from contextwise.comparison.sequential import seeds_to_decide, simultaneous
from contextwise.settings import ConfigError, Settings
from contextwise.stats import CONFIDENCE, Estimate, student_t

VERDICTS = {True: "holds", False: "does not hold", None: "undecided"}
MOST_SEEDS = 200
"""More are not counted where it is said how many would decide a claim."""
LEAST_SEEDS = 3
"""Fewer decide nothing about trained models. A trial asks for four, since it may stop after any of them."""


Limits = tuple[float, float]


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


class Marginal(Better):
    """A claim: one model is better than another by a margin at most, and may be worse; or they differ by it at most."""

    most: float = Field(gt=0, description="difference in loss, nats per token, that is still marginal")
    both_sides: bool = Field(default=False, description="it may not be worse by more either")


class Growing(Settings):
    """A claim: how much better one model is than another grows from pair to pair."""

    text: str
    pairs: list[tuple[str, str]] = Field(min_length=2, description="better and than")

    @property
    def names(self) -> list[str]:
        return [name for pair in self.pairs for name in pair]


class Kept(Settings):
    """A claim: a row keeps most of the gain of another: more than half of that from ``base`` to ``best``."""

    text: str
    part: str
    base: str = Field(description="the same decoder, trained without contexts")
    best: str
    printed: float | None = None

    @property
    def names(self) -> list[str]:
        return [self.part, self.base, self.best]


class Ruling(NamedTuple):
    """Whether a claim holds by intervals of one confidence; None where that is undecided, with the reason.

    ``needs`` gives what it would take to decide it, in words; empty where that is not known.
    """

    holds: bool | None
    reason: str = ""
    needs: Callable[[], str] = str


@dataclass(frozen=True)
class Verdict:
    """The ruling on a claim at each confidence.

    ``comparisons``: intervals or tests of which a single wrong one makes it wrong; they take part in the error.
    """

    at: Callable[[float], Ruling]
    comparisons: int = 0

    @property
    def holds(self) -> bool | None:
        """At a confidence of 95%."""
        return self.at(CONFIDENCE).holds

    @property
    def reason(self) -> str:
        """Why it is undecided at a confidence of 95%."""
        return self.at(CONFIDENCE).reason

    def mapped(self, change: Callable[[Ruling], Ruling]) -> "Verdict":
        """Another verdict that follows from this one, at every confidence."""
        return Verdict(lambda confidence: change(self.at(confidence)), self.comparisons)


@dataclass(frozen=True)
class Claim:
    """A sentence of the document, whether it holds here (None: undecided), and the numbers that decide it."""

    text: str
    holds: bool | None
    evidence: str
    verdict: Verdict | None = field(default=None, compare=False, repr=False, metadata=NOT_IN_JSON)

    @classmethod
    def of(cls, text: str, verdict: Verdict, evidence: str = "") -> "Claim":
        """A claim with its verdict; the reason of an undecided one follows the evidence."""
        return cls(text, verdict.holds, "; ".join(part for part in (evidence, verdict.reason) if part), verdict)

    def over_seeds(self, seeds: int) -> "Claim":
        """The claim about models that were trained with so many seeds; undecided with fewer than three."""
        if seeds >= LEAST_SEEDS or self.holds is None:
            return self
        few = "one seed decides" if seeds == 1 else f"{seeds} seeds decide"
        reason = f"{few} nothing about trained models, which takes {LEAST_SEEDS} or more"
        return Claim.of(self.text, undecided(reason), self.evidence)

    def without_refutation(self, reason: str) -> "Claim":
        """The claim, undecided where it would not hold."""
        verdict = self.verdict and self.verdict.mapped(lambda r: Ruling(None, reason) if r.holds is False else r)
        evidence = f"{reason}: {self.evidence}" if self.holds is False else self.evidence
        return replace(self, holds=self.holds or None, evidence=evidence, verdict=verdict)


def share_error(claims: Sequence[Claim]) -> list[Claim]:
    """An item's claims, decided so that with a probability of 95% none of the verdicts is wrong (Bonferroni).

    Those that the wider interval of the shared error leaves undecided say so, and undecided ones what would decide them.
    """
    comparisons = sum(claim.verdict.comparisons for claim in claims if claim.verdict is not None)
    confidence = simultaneous(CONFIDENCE, max(1, comparisons))
    note = f"the interval at {confidence:.1%} decides, as {comparisons} comparisons share the error"
    decided = []
    for claim in claims:
        ruling = Ruling(claim.holds) if claim.verdict is None else claim.verdict.at(confidence)
        needs = ruling.needs() if ruling.holds is None else ""
        notes = [claim.evidence, "" if ruling.holds is claim.holds else note, needs]
        decided.append(replace(claim, holds=ruling.holds, evidence="; ".join(filter(None, notes))))
    return decided


def undecided(reason: str) -> Verdict:
    """The verdict of a claim that nothing decides."""
    return Verdict(lambda confidence: Ruling(None, reason))


def above(estimate: Estimate, bound: float = 0.0) -> Verdict:
    """Whether an estimate is above a bound."""
    if math.isnan(bound):
        return undecided("the bound is not a number")

    def side(limits: Limits) -> bool | None:
        low, high = limits
        return low > bound if low > bound or high < bound else None

    needs = functools.partial(_seeds_needed, estimate, bound)
    return _inferred(side, estimate, otherwise=f"the interval contains {bound:g}", needs=needs)


def _seeds_needed(estimate: Estimate, bound: float, confidence: float) -> str:
    """The seeds that would decide a difference as large and seeds as different as those observed, as a clause.

    As for a trial (:func:`~contextwise.comparison.sequential.seeds_to_decide`), since who adds seeds until a claim is decided
    looks after each. The rest of the interval (documents, partitions) stays as it is. Empty where the spread is not known.
    """
    if estimate.deviation is None or estimate.seeds is None:
        return ""
    difference, others = estimate.value - bound, estimate.parts[:-1]  # the last part is that of the seeds
    rest = math.sqrt(sum(variance * student_t(freedom, confidence) ** 2 for variance, freedom in others))
    if difference == 0:
        return "no number of seeds would decide a difference of zero"
    if abs(difference) <= rest:
        times = rest / abs(difference)
        return f"no number of seeds would decide it: the rest of the interval is ± {times:.2g} times the difference"
    seeds = seeds_to_decide(-abs(difference), estimate.deviation, 0.0, confidence, rest, most=MOST_SEEDS)
    return f"{seeds or f'more than {MOST_SEEDS}'} seeds would decide it, at this difference and spread"


def below(estimate: Estimate, bound: float = 0.0) -> Verdict:
    """Whether an estimate is below a bound."""
    return opposite(above(estimate, bound))


def within(estimate: Estimate, low: float, high: float) -> Verdict:
    """Whether an estimate lies between two bounds: all of its interval does. It does not where all of it is beyond one."""

    def inside(limits: Limits) -> bool | None:
        lowest, highest = limits
        return False if lowest > high or highest < low else True if low < lowest and highest < high else None

    return _inferred(inside, estimate, otherwise=f"the interval contains {low:g} or {high:g}")


def contains(estimate: Estimate, value: float) -> Verdict:
    """Whether an estimate agrees with a value: its interval contains it."""
    if math.isnan(value):
        return undecided("the value to compare to is not a number")
    return _inferred(lambda limits: limits[0] <= value <= limits[1], estimate)


def higher(estimate: Estimate, other: Estimate) -> Verdict:
    """Whether one estimate is higher than another that it is not paired with: their intervals do not overlap."""

    def apart(limits: Limits, others: Limits) -> bool | None:
        return limits[0] > others[1] if limits[0] > others[1] or limits[1] < others[0] else None

    return _inferred(apart, estimate, other, otherwise="the intervals overlap")


def _inferred(
    rule: Callable[..., bool | None],
    *estimates: Estimate,
    otherwise: str = "",
    needs: Callable[[float], str] = lambda confidence: "",
) -> Verdict:
    """The verdict of a rule on the limits of estimates at each confidence; undecided without limits."""
    if problem := next(filter(None, map(_problem, estimates)), ""):
        return undecided(problem)

    def at(confidence: float) -> Ruling:
        holds = rule(*(estimate.at(confidence).limits for estimate in estimates))
        holds = None if holds is None else bool(holds)  # numpy's False, of a bound of numpy's, is not Python's
        return Ruling(holds, otherwise if holds is None else "", functools.partial(needs, confidence))

    return Verdict(at, comparisons=1)


def _problem(estimate: Estimate) -> str:
    """Why an estimate decides nothing; empty if it may."""
    if math.isnan(estimate.value):
        return "the value is not a number"
    return "there is no interval" if any(map(math.isnan, estimate.limits)) else estimate.too_few


def opposite(verdict: Verdict) -> Verdict:
    """The verdict of a claim that holds where the other does not."""
    return verdict.mapped(lambda r: r._replace(holds=None if r.holds is None else not r.holds))


def shown(verdict: Verdict) -> Verdict:
    """A verdict where it holds; undecided where it does not, since that shows nothing else."""
    other_side = "a difference is on the other side"
    return verdict.mapped(lambda r: r._replace(holds=None, reason=other_side) if r.holds is False else r)


def given(condition: Verdict, verdict: Verdict, otherwise: str) -> Verdict:
    """A verdict that means something only under a condition; undecided, for the reason ``otherwise``, where it does not hold.

    Either the condition is true or not, so one wrong interval of the two makes the verdict wrong: they count as one comparison.
    """

    def at(confidence: float) -> Ruling:
        met = condition.at(confidence)
        return verdict.at(confidence) if met.holds else Ruling(None, otherwise, met.needs)

    return Verdict(at, verdict.comparisons)


def exact(holds: bool, *numbers: float) -> Verdict:
    """A condition on exact numbers, which are the same at every repetition."""
    if any(math.isnan(number) for number in numbers):
        return undecided("a value is not a number")
    return Verdict(lambda confidence: Ruling(bool(holds)))


def significant(effect: float, p: float) -> Verdict:
    """Whether an effect is above zero, by the p value of a one-sided test; below it, where the test of that side decides."""
    if math.isnan(effect) or math.isnan(p):
        return undecided("the test has no result")

    def at(confidence: float) -> Ruling:
        if min(p, 1 - p) < 1 - confidence:
            return Ruling(bool(effect > 0))
        return Ruling(None, f"p is not below {1 - CONFIDENCE:.2g}")

    return Verdict(at, comparisons=1)


def all_hold(verdicts: Iterable[Verdict]) -> Verdict:
    """Of a claim that has several parts: holds where all hold, does not hold where one does not."""
    every = list(verdicts)

    def at(confidence: float) -> Ruling:
        rulings = [verdict.at(confidence) for verdict in every]
        if any(ruling.holds is False for ruling in rulings):
            return Ruling(False)
        if not every:
            return Ruling(None, "there is nothing to decide it by")
        missing = [ruling for ruling in rulings if ruling.holds is None]
        if len(missing) == 1:
            return missing[0]
        return Ruling(None, missing[0].reason) if missing else Ruling(True)

    return Verdict(at, sum(verdict.comparisons for verdict in every))


def all_agree(verdicts: Iterable[Verdict], what: str, least: int = 1) -> Verdict:
    """Of a claim that is repeated: decided where ``least`` or more repetitions (``what``: seeds, partitions) agree."""
    every = list(verdicts)

    def at(confidence: float) -> Ruling:
        if len(every) < least:
            return Ruling(None, f"it takes {least} {what} or more, and there are {len(every)}")
        first, *_ = rulings = [verdict.at(confidence) for verdict in every]
        found = [ruling.holds for ruling in rulings]
        if True in found and False in found:
            return Ruling(None, f"the {what} do not agree")
        if None in found and len(set(found)) > 1:
            deciding = len(found) - found.count(None)
            return Ruling(None, f"{deciding} of {len(found)} {what} decide{'s' * (deciding == 1)} it")
        return Ruling(first.holds, first.reason)

    # It is wrong only where all are: one comparison.
    return Verdict(at, max((verdict.comparisons for verdict in every), default=0))


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
