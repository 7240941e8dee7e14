"""Results of the causality check, as numbers and sentences."""

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
"""Description of an effect of each perturbation; the keys are the names of the perturbations in their order."""


@dataclass(frozen=True)
class Effect:
    """Effect of a perturbation on logits that it must not change.

    Attributes:
        name: name of the perturbation; a key of :data:`SENTENCES`.
        outcome: ``none``, ``leak``, ``not separated`` (packed documents see the documents before them, and the model does
            not claim otherwise) or ``not measured``.
        largest: largest absolute effect on logits (for gradients: largest absolute gradient); None if not measured.
        tolerance: largest effect that counts as rounding.
        allowed: largest effect of the same perturbation on logits that it may change; None if no such logits exist.
        affected: position of the changed logits, counted from the row's first column.
        changed: position of the replaced token (the first, if several were); None if it does not apply.
        detail: the row with the effect, or the reason why it was not measured.
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
        """Describe the position of the effect, or the reason why it was not measured."""
        if self.largest is None:
            return f"{self.name} ({self.outcome}): {self.detail}"
        description = SENTENCES[self.name].format(
            affected=self.affected, changed=self.changed, largest=number(self.largest)
        )
        return f"{self.name} ({self.outcome}): {description} ({self.detail})"


@dataclass(frozen=True)
class Causality:
    """Result of :func:`~contextwise.evaluation.measures.causality.perturbations.measure_causality`.

    Attributes:
        model: name of the model's class.
        dtype: the coarsest floating-point type of its parameters and logits, which sets the tolerance.
        effects: the effect of each perturbation, in the order of :data:`SENTENCES`.
        gates_opened: whether the context's gates were all zero, which blocks the context; they were set to random values for
            the measurement and then restored.
    """

    model: str
    dtype: str
    effects: tuple[Effect, ...]
    gates_opened: bool = False

    def __getitem__(self, name: str) -> Effect:
        return next(effect for effect in self.effects if effect.name == name)

    @property
    def leaks(self) -> tuple[Effect, ...]:
        """Effects that are leaks."""
        return tuple(effect for effect in self.effects if effect.outcome == LEAK)

    @property
    def causal(self) -> bool:
        """Whether no leak was found and at least the effect of future tokens could be measured."""
        return not self.leaks and self["future tokens"].outcome == NONE

    @property
    def heading(self) -> str:
        """Verdict on a single line."""
        if self.leaks:
            verdict = f"leaks ({', '.join(effect.name for effect in self.leaks)})"
        else:
            verdict = "no leak found" if self.causal else "not measured"
        return f"{self.model}, {self.dtype}: {verdict}"

    @property
    def notes(self) -> list[str]:
        """A sentence for each effect whose outcome is not ``none``, and for opened gates."""
        notes = [effect.sentence for effect in self.effects if effect.outcome != NONE]
        if self.gates_opened:
            notes.append("the context's gates are all zero; drawn ones showed what stands behind them")
        return notes

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Rows of the table: perturbation, effect, tolerance, allowed effect, outcome."""
        return [
            (e.name, number(e.largest), number(e.tolerance), number(e.allowed), e.outcome)
            for e in self.effects
        ]

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to JSON-ready data."""
        return {
            "causal": self.causal,
            "architecture": self.model,
            "dtype": self.dtype,
            "effects": [asdict(effect) for effect in self.effects],
            "gates_opened": self.gates_opened,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Causality":
        """Build the result from its JSON-ready data."""
        effects = tuple(Effect(**effect) for effect in content["effects"])
        return cls(content["architecture"], content["dtype"], effects, content["gates_opened"])

    def table(self) -> "RenderableType":
        """Build the table for the terminal, in 80 columns."""
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
    """Format an effect with two digits; an exact zero is ``0``."""
    return "–" if value is None else "0" if value == 0 else f"{value:.2g}"
