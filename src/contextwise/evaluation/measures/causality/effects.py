"""Results of a measurement of causality, as numbers and sentences."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

NONE, LEAK, NOT_SEPARATED, NOT_MEASURED = "none", "leak", "not separated", "not measured"
SENTENCES = {
    "future tokens": "the logits at position {affected} change by {largest} when the token at position {changed} does",
    "gradients": "the logits at position {affected} have a gradient of {largest} to the embedding at position {changed}",
    "left padding": "the logits at position {affected} of a padded row differ by {largest} from those of the row alone",
    "tokens under the mask": "the logits at position {affected} change by {largest} when the tokens of the padding do",
    "packed neighbours": "the logits at position {affected} change by {largest} when the document that begins at "
    "position {changed}, packed before theirs, does",
    "cached steps": "the logits at position {affected}, computed with a cache in the call that begins at position "
    "{changed}, differ by {largest} from the full pass",
}
"""What an effect of each perturbation means; also their names and their order."""


@dataclass(frozen=True)
class Effect:
    """The effect of one perturbation where it must have none.

    Attributes:
        name: of the perturbation; a key of :data:`SENTENCES`.
        outcome: ``none``, ``leak``, ``not separated`` (packed documents see the ones before them, and nobody promised
            that they would not) or ``not measured``.
        largest: largest absolute effect on logits (for gradients: largest absolute gradient); None if not measured.
        tolerance: up to which it counts as rounding.
        allowed: largest effect of the same perturbation where it may have one; None where there is no such place.
        affected: position whose logits it moved, counted from the row's first column.
        changed: position that was changed (the first, if several were); None where there is no such position.
        detail: the row in which it happened, or why it was not measured.
    """

    name: str
    outcome: str
    largest: float | None = None
    tolerance: float | None = None
    allowed: float | None = None
    affected: int | None = None
    changed: int | None = None
    detail: str = ""

    @property
    def sentence(self) -> str:
        """Where it happened, or why it was not measured."""
        if self.largest is None:
            return f"{self.name} ({self.outcome}): {self.detail}"
        what = SENTENCES[self.name].format(
            affected=self.affected, changed=self.changed, largest=number(self.largest)
        )
        return f"{self.name} ({self.outcome}): {what} ({self.detail})"


@dataclass(frozen=True)
class Causality:
    """The result of :func:`~contextwise.evaluation.measures.causality.perturbations.measure_causality`.

    Attributes:
        model: name of the model's class.
        dtype: the coarsest floating-point type of its parameters and logits, which sets the tolerance.
        effects: one for each perturbation, in the order of :data:`SENTENCES`.
        gates_opened: the context's gates were all zero, so that nothing could come through them; they were drawn for the
            measurement and put back.
    """

    model: str
    dtype: str
    effects: tuple[Effect, ...]
    gates_opened: bool = False

    def __getitem__(self, name: str) -> Effect:
        return next(effect for effect in self.effects if effect.name == name)

    @property
    def leaks(self) -> tuple[Effect, ...]:
        """The effects that are leaks."""
        return tuple(effect for effect in self.effects if effect.outcome == LEAK)

    @property
    def causal(self) -> bool:
        """No leak was found, and the replaced future tokens, at least, could be measured."""
        return not self.leaks and self["future tokens"].outcome == NONE

    @property
    def heading(self) -> str:
        """The verdict in one line."""
        if self.leaks:
            verdict = f"leaks ({', '.join(effect.name for effect in self.leaks)})"
        else:
            verdict = "no leak found" if self.causal else "not measured"
        return f"{self.model}, {self.dtype}: {verdict}"

    @property
    def notes(self) -> list[str]:
        """One sentence for each effect that is not simply none, and for opened gates."""
        notes = [effect.sentence for effect in self.effects if effect.outcome != NONE]
        if self.gates_opened:
            notes.append("the context's gates are all zero; drawn ones showed what stands behind them")
        return notes

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """The table: perturbation, effect, tolerance, allowed effect, outcome."""
        return [
            (e.name, number(e.largest), number(e.tolerance), number(e.allowed), e.outcome)
            for e in self.effects
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "causal": self.causal,
            "architecture": self.model,
            "dtype": self.dtype,
            "effects": [asdict(effect) for effect in self.effects],
            "gates_opened": self.gates_opened,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Causality":
        """The result from its JSON form."""
        effects = tuple(Effect(**effect) for effect in content["effects"])
        return cls(content["architecture"], content["dtype"], effects, content["gates_opened"])

    def table(self) -> "RenderableType":
        """For the terminal, in 80 columns."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(*COLUMNS, box=box.SIMPLE_HEAD, pad_edge=False)
        for column in table.columns[1:-1]:
            column.justify = "right"
        for row in self.rows():
            table.add_row(*row)
        return Group(Text(self.heading), table, *map(Text, self.notes))

    def __str__(self) -> str:
        table = [COLUMNS, *self.rows()]
        lines = [f"{a:<22}{b:>9}{c:>11}{d:>9}   {e}" for a, b, c, d, e in table]
        return "\n".join([self.heading, "", *lines, *(["", *self.notes] if self.notes else [])])


COLUMNS = ("perturbation", "effect", "tolerance", "allowed", "outcome")


def number(value: float | None) -> str:
    """Two digits of an effect; a zero without a point is exact."""
    return "–" if value is None else "0" if value == 0 else f"{value:.2g}"
