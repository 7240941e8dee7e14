"""Results of comparisons: groups of runs, their differences with intervals and verdicts, and which group is best."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from contextwise.base.estimates import NOT_IN_JSON, Estimate, counted, exponential, listed, written
from contextwise.base.runs import RunFolder
from contextwise.base.views import Viewed
from contextwise.comparison.compared_runs import of_single_runs

UNITS = {"token": "nats per token", "byte": "bits per byte"}


@dataclass(frozen=True)
class Group:
    """Runs of one recipe with different seeds, or one model.

    ``training_tokens``, ``training_seconds`` and ``flops_per_token`` are means over the runs; None where not known.
    """

    name: str
    sources: list[str]
    seeds: list[int | None]  # [None] for a model that is no run
    parameters: int
    loss: Estimate  # nats per token of the held-out documents, mean over seeds
    losses: list[float]  # of each run
    perplexity: Estimate
    bits_per_byte: Estimate | None
    training_tokens: float | None
    training_seconds: float | None
    flops_per_token: float | None = None
    runs: list[RunFolder] = field(default_factory=list, metadata=NOT_IN_JSON)


@dataclass(frozen=True)
class Difference:
    """Group minus reference on the same documents: negative where the group's loss is lower."""

    group: str
    reference: str
    unit: str
    difference: Estimate  # with the interval over documents (and seeds, where there are several)
    paired_by_seed: bool
    seed_differences: dict[str, float]  # by seed, if paired by seed
    documents_lower: float  # share of the documents on which the group's loss is lower
    single_runs: list[str] = field(
        default_factory=list
    )  # of the two; the interval does not hold for other seeds of them

    IN_JSON: ClassVar = ("verdict", "lower", "relative_perplexity")

    @property
    def restriction(self) -> str:
        """The runs that the difference is restricted to."""
        return of_single_runs(self.single_runs, 2)

    @property
    def relative_perplexity(self) -> Estimate | None:
        """The group's perplexity over the reference's, minus 1; None where the difference is in bits per byte."""
        if self.unit != UNITS["token"]:
            return None
        return self.difference.map(lambda nats: exponential(nats) - 1)

    @property
    def verdict(self) -> str:
        """One sentence: lower, higher, or no significant difference."""
        difference, pair = self.difference, f"{self.group} − {self.reference}"
        if not difference.has_interval:
            return f"{pair} = {written(difference.value, '+.4f')} {self.unit}; one document allows no interval"
        if difference.too_few:
            return f"{pair} = {difference:+.4f} {self.unit}; {difference.too_few}"
        basis = f"95% interval: {difference.basis}" if difference.basis else "95% interval"
        where, comma = self.restriction, ", " if self.restriction else ""
        if where:
            basis += ", which says nothing about other seeds" + f" of {listed(self.single_runs)}" * bool(
                difference.seeds
            )
        if not difference.decided:
            return (
                f"No significant difference between {self.group} and {self.reference}{where and ' '}{where}: the interval "
                f"contains zero ({pair} = {difference:+.4f} {self.unit}; {basis})"
            )
        side, size = ("lower", -difference) if difference.value < 0 else ("higher", difference)
        words = f"the loss of {self.group} is {side} than that of {self.reference} by {size.value:.4f} {self.unit}"
        words = f"{where}{comma}{words} {size.interval('.4f')} ({basis})"
        return f"{words[:1].upper()}{words[1:]}"

    @property
    def decision(self) -> str:
        """``lower`` or ``higher``, as the group's loss is; ``undecided`` without a significant difference."""
        if not self.difference.decided:
            return "undecided"
        return "lower" if self.difference.value < 0 else "higher"

    @property
    def lower(self) -> str | None:
        """The group whose loss is lower; None where there is no significant difference."""
        return {"lower": self.group, "higher": self.reference}.get(self.decision)


@dataclass(frozen=True, repr=False)
class Comparison(Viewed):
    """Result of :func:`compare`; ``notes`` are sentences that a reader of the figures has to know."""

    corpus: dict[str, Any]
    documents: int
    tokens: int
    unit: str
    reference: str
    groups: list[Group]
    differences: list[Difference]
    notes: list[str]

    @property
    def answer(self) -> str:
        """The first difference with its interval, and how many there are."""
        if not self.differences:
            only = self.groups[0]
            return f"{only.name}: {self.loss_of(only):.4f} {self.unit}, on {counted(self.documents, 'document')}"
        first, more = self.differences[0], len(self.differences) - 1
        pair = f"{first.group} − {first.reference} = {first.difference:+.4f} {self.unit}, {first.decision}"
        runs = f" {first.restriction}" * bool(first.single_runs)
        others = f"; {counted(more, 'more difference')}" * bool(more)
        return f"{pair}{runs}, on {counted(self.documents, 'document')}{others}"

    @property
    def lowest(self) -> Group:
        """The group with the lowest loss, in the comparison's unit: nats per token mean something else for each tokenizer."""
        return min(self.groups, key=lambda group: self.loss_of(group).value)

    @property
    def best(self) -> Group | None:
        """The group that is significantly better than each of the others; None if there is none, or if one of the differences
        is between single runs, which no other seed confirms.
        """
        lowest = self.lowest
        won = [
            (each.group, each.reference)
            for each in self.differences
            if each.lower == lowest.name and not each.single_runs
        ]
        return lowest if {name for pair in won for name in pair} == {each.name for each in self.groups} else None

    def loss_of(self, group: Group) -> Estimate:
        """The loss of a group in the comparison's unit."""
        per_byte = group.bits_per_byte if self.unit == UNITS["byte"] else None
        return per_byte or group.loss
