"""The choice of an objective by its name in a recipe, with every problem told in the recipe's own words."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator

from contextwise.base.config import Settings, validate
from contextwise.base.errors import ConfigError
from contextwise.objectives.causal import Causal
from contextwise.objectives.infilling import Infilling
from contextwise.objectives.instruction import Instruction
from contextwise.objectives.masked import Masked
from contextwise.objectives.prefix import PrefixLM
from contextwise.objectives.sentence import Sentence
from contextwise.objectives.sentences import NextSentence, SentenceOrder
from contextwise.objectives.spans import SpanCorruption
from contextwise.objectives.ul2 import UL2

SINGLE: tuple[type[Settings], ...] = (
    Causal,
    Masked,
    NextSentence,
    SentenceOrder,
    SpanCorruption,
    UL2,
    PrefixLM,
    Infilling,
    Instruction,
    Sentence,
)


def read_objective(value: Any, classes: Sequence[type[Settings]]) -> Any:
    """One of ``classes`` from a recipe's ``{name: ..., setting: ...}``, or from a name alone.

    Raises:
        ConfigError: there is no such objective, or a setting is wrong.
    """
    if isinstance(value, tuple(classes)):
        return value
    values = {"name": value} if isinstance(value, str) else value
    named = {cls.model_fields["name"].default: cls for cls in classes}
    name = values.get("name") if isinstance(values, dict) else None
    if not isinstance(name, str) or name not in named:
        raise ConfigError(
            f"the objective is {name if isinstance(values, dict) else value!r}, but must be one of {', '.join(named)}"
        )
    return validate(named[name], values, f"the objective {name!r}")


def _single(value: Any) -> Any:
    return read_objective(value, SINGLE)


SingleObjective = Annotated[
    Causal
    | Masked
    | NextSentence
    | SentenceOrder
    | SpanCorruption
    | UL2
    | PrefixLM
    | Infilling
    | Instruction
    | Sentence,
    BeforeValidator(_single),
]
