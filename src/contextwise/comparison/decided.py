"""An arm against a reference: the looks at their difference, the decision in a sentence, and the seeds that it would need."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, TypedDict

from contextwise.base.estimates import FEWEST_DOCUMENTS, NOT_IN_JSON, Documents, Estimate, counted
from contextwise.base.views import Viewed
from contextwise.comparison.sequential import (
    FEWEST_SEEDS,
    Decision,
    Look,
    decide,
    deviation_limits,
    only_rounded,
    seeds_to_decide,
)

READINGS: dict[Documents, str] = {"fixed": "on these held-out documents", "random": "on any text like these documents"}
MOST_SEEDS = 1000
RESULT = "result.json"


class HeldOut(TypedDict):
    """Size of the held-out text that decides: documents, and their tokens (bytes, questions); 0 and 0 for means of runs."""

    documents: int
    tokens: int


@dataclass(frozen=True)
class Comparison:
    """An arm against the reference at one budget."""

    arm: str
    reference: str
    budget: int
    margin: float
    documents: Documents
    looks: list[Look]  # after each seed; their intervals hold together with those of all other comparisons
    documents_half_width: float  # over documents at the last look; infinite for fewer than six documents
    where: str = ""  # what the decision is about, in place of the documents' reading
    looked: Sequence[int] = field(default=(), metadata=NOT_IN_JSON)
    """The numbers of seeds after which one looked, the only ones that can decide; after each where it is empty."""
    compute: str = field(default="", metadata=NOT_IN_JSON)
    """Of each run in words, such as "the FLOPs of 131k tokens"."""

    IN_JSON: ClassVar = ("decision", "decided_after", "difference", "sentence", "seeds_to_decide")

    @property
    def decision(self) -> Decision:
        """The decision of the first look that decides."""
        return decide(self.difference, self.margin)

    @property
    def decided_after(self) -> int | None:
        """The seeds after which the decision was made; None if it is open."""
        seen = [look for look in self.looks if not self.looked or look.seeds in self.looked]
        decisions = ((look.seeds, decide(look.of(self.documents), self.margin)) for look in seen)
        return next((seeds for seeds, decision in decisions if decision != "undecided"), None)

    @property
    def last(self) -> Look:
        """The newest look."""
        return self.looks[-1]

    @property
    def difference(self) -> Estimate:
        """The difference at the look that decided; at the newest if it is open. Later looks are in :attr:`looks`."""
        return self.looks[(self.decided_after or len(self.looks)) - 1].of(self.documents)

    @cached_property
    def further_seeds(self) -> tuple[int | None, int | None] | None:
        """Seeds in all that would decide a difference as large as the one observed, in 4 of 5 cases; None: no number does.

        From the fewest to the most, by the 80% interval of the deviation between seeds; None before seeds give an interval.
        """
        look = self.last
        half = self.documents_half_width if self.documents == "random" else 0.0
        same = only_rounded(look.fixed.value, look.deviation)
        if same or look.seeds < FEWEST_SEEDS or not math.isfinite(half):
            return None
        fewest, most = (
            seeds_to_decide(look.fixed.value, deviation, self.margin, look.fixed.confidence, half, most=MOST_SEEDS)
            for deviation in deviation_limits(look.deviation, look.seeds)
        )
        return fewest, most

    @property
    def sentence(self) -> str:
        """The decision in one sentence, with the compute that it holds for."""
        difference, seeds = self.difference, self.decided_after or len(self.looks)
        at = f" at {self.compute}" if self.compute else ""
        shown = f"{difference:+.4f} {difference.unit}"
        after = f"after {counted(seeds, 'seed')} {self.where or READINGS[self.documents]}"
        decision = self.decision
        if decision == "equivalent":
            same = " No seed differs at all: does the arm change anything?" * (difference.low == difference.high == 0)
            return f"{self.arm} and {self.reference} are equivalent within {self.margin:g}{at}: {shown} {after}.{same}"
        if decision != "undecided":
            return f"{self.arm} is {decision} than {self.reference}{at}: {shown} {after}."
        return f"Undecided{at} {after}: {self.arm} − {self.reference} = {shown}. {self.needed()}"

    @property
    def seeds_to_decide(self) -> tuple[int | None, int | None] | None:
        """:attr:`further_seeds` of an open decision."""
        return None if self.decided_after else self.further_seeds

    def needed(self) -> str:
        """What an open decision would take."""
        if len(self.looks) < 2:
            return "One seed says nothing about others."
        if only_rounded(self.last.fixed.value, self.last.deviation):
            return "It is the same with every seed, as where losses are rounded: how much it varies is unknown."
        half, mean = self.documents_half_width, abs(self.last.fixed.value)
        if self.documents == "random" and not math.isfinite(half):
            return (
                f"Fewer than {FEWEST_DOCUMENTS} documents do not show how far documents differ: hold out more of them."
            )
        if self.documents == "random" and not (half < mean or mean + half <= self.margin):
            return "No number of seeds decides it: the held-out documents differ too much, so hold out more of them."
        if self.further_seeds is None:
            return f"Fewer than {FEWEST_SEEDS} seeds have no interval, and cannot say how many would decide."
        fewest, most = (None if seeds is None else max(seeds, self.last.seeds + 1) for seeds in self.further_seeds)
        if fewest is None:
            return f"More than {MOST_SEEDS} seeds would be needed: take a larger margin, or steadier training."
        seeds = (
            f"more than {fewest}" if most is None else f"about {fewest}" if fewest == most else f"{fewest} to {most}"
        )
        return f"A difference of this size needs {seeds} seeds in all, as far as these tell how much seeds vary."


@dataclass(frozen=True, repr=False, kw_only=True)
class Decided(Viewed):
    """Arms against a reference, as a trial or a decision has compared them."""

    reference: str
    margin: float
    confidence: float
    documents: Documents
    held_out: HeldOut
    comparisons: list[Comparison]
    notes: list[str] = field(default_factory=list)

    @property
    def in_short(self) -> str:
        """The first comparison with its interval, and how many there are."""
        first, more = self.comparisons[0], len(self.comparisons) - 1
        after = f"{first.decision} after {counted(first.decided_after or len(first.looks), 'seed')}"
        pair = f"{first.arm} − {first.reference} = {first.difference:+.4f} {first.difference.unit}, {after}"
        return f"{pair}; {counted(more, 'more comparison')}" if more else pair
