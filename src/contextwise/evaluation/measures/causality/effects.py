"""The measured effects of perturbations on a model, and how they are shown."""

import io
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from rich.console import Console, Group
from rich.text import Text

from contextwise.base.tables import Column, Table

NONE, LEAK, NOT_SEPARATED, NOT_MEASURED = "none", "leak", "not separated", "not measured"
DIFFERS = "differs"
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
"""Perturbation -> description of its effect."""


@dataclass(frozen=True)
class Effect:
    """Effect of a perturbation on logits that it must not change.

    Attributes:
        outcome: ``none``, ``leak``, ``differs`` (with a cache), ``not separated`` (packed documents see the documents before
            them, and the model does not claim otherwise) or ``not measured``.
        largest: largest absolute effect on logits (for gradients: largest absolute gradient); None if not measured.
        tolerance: largest effect that counts as rounding.
        allowed: largest effect of the same perturbation on logits that it may change; None if no such logits exist.
        affected: position of the changed logits, counted from the row's first column.
        changed: position of the (first) replaced token; None if it does not apply.
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
        """The position of the effect, or the reason why it was not measured."""
        if self.largest is None:
            return f"{self.name} ({self.outcome}): {self.detail}"
        description = SENTENCES[self.name].format(**asdict(self) | {"largest": _number(self.largest)})
        return f"{self.name} ({self.outcome}): {description} ({self.detail})"


@dataclass(frozen=True)
class Causality:
    """Effects of all perturbations on a model.

    Attributes:
        architecture: name of the model's class.
        dtype: the coarsest floating-point type of its parameters and logits, which sets the tolerance.
        effects: the effect of each perturbation, in the order of :data:`SENTENCES`.
        gates_opened: whether the context's gates were all zero, which blocks the context; they were set to random values for
            the measurement and then restored.
    """

    architecture: str
    dtype: str
    effects: tuple[Effect, ...]
    gates_opened: bool = False

    IN_JSON: ClassVar = ("causal",)

    def __getitem__(self, name: str) -> Effect:
        return next(effect for effect in self.effects if effect.name == name)

    @property
    def leaks(self) -> tuple[Effect, ...]:
        """Effects that are leaks."""
        return tuple(effect for effect in self.effects if effect.outcome == LEAK)

    @property
    def cache_differs(self) -> bool:
        """Whether steps over a cache give other logits than the full pass."""
        return any(effect.outcome == DIFFERS for effect in self.effects)

    @property
    def causal(self) -> bool:
        """Whether nothing was found, in the cache neither, and at least the effect of future tokens could be measured."""
        return not self.leaks and not self.cache_differs and self["future tokens"].outcome == NONE

    @property
    def verdict(self) -> str:
        """What was found, in a few words."""
        found = [f"leaks ({', '.join(effect.name for effect in self.leaks)})"] * bool(self.leaks)
        found += ["other logits with a cache"] * self.cache_differs
        return ", ".join(found) or ("no leak found" if self.causal else "not measured")

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Causality":
        """Build the result from its JSON-ready data."""
        effects = tuple(Effect(**effect) for effect in content["effects"])
        return cls(content["architecture"], content["dtype"], effects, content["gates_opened"])

    def __rich__(self) -> Group:
        """The verdict, a table of the effects, and a sentence for each outcome other than ``none``, in 80 columns."""
        columns = [Column(name) for name in ("perturbation", "effect", "tolerance", "allowed")]
        columns.append(Column("outcome", align="left"))
        rows = [[e.name, *map(_number, (e.largest, e.tolerance, e.allowed)), e.outcome] for e in self.effects]
        notes = [effect.sentence for effect in self.effects if effect.outcome != NONE]
        if self.gates_opened:
            notes.append("the context's gates are all zero; random values showed what is behind them")
        return Group(
            Text(f"{self.architecture}, {self.dtype}: {self.verdict}"), Table("", columns, rows), *map(Text, notes)
        )

    def __str__(self) -> str:
        console = Console(file=(text := io.StringIO()), width=400)
        console.print(self)
        return text.getvalue()


def _number(value: float | None) -> str:
    """Format an effect with two digits; an exact zero is ``0``."""
    return "–" if value is None else "0" if value == 0 else f"{value:.2g}"
