"""Pretraining objectives: documents in, examples out. One file each; see :mod:`contextwise.objectives.objective`."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from contextwise.objectives.causal import Causal
from contextwise.objectives.choice import SINGLE, SingleObjective, read_objective
from contextwise.objectives.contexts import ContextTexts
from contextwise.objectives.infilling import Infilling
from contextwise.objectives.instruction import Instruction
from contextwise.objectives.masked import Masked
from contextwise.objectives.mixture import Mixture, MixtureStream, Part
from contextwise.objectives.objective import NO_LOSS, Cut, Examples, ExampleStream, Objective
from contextwise.objectives.prefix import PrefixLM
from contextwise.objectives.sentence import Sentence, SentenceExamples
from contextwise.objectives.sentences import NextSentence, SentenceOrder
from contextwise.objectives.spans import SpanCorruption
from contextwise.objectives.splitting import SentenceIndex
from contextwise.objectives.ul2 import UL2
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary, add_special_tokens


def _any(value: Any) -> Any:
    return read_objective(value, [*SINGLE, Mixture])


# The type of a field of a recipe.
AnyObjective = Annotated[SingleObjective | Mixture, BeforeValidator(_any)]


def build_objective(name: str, **settings: Any) -> Any:
    """An objective by its name in recipes, with its settings.

    Raises:
        ConfigError: there is no such objective, or a setting is wrong.
    """
    return _any({"name": name, **settings})


__all__ = [
    "NO_LOSS",
    "UL2",
    "AnyObjective",
    "Causal",
    "ContextTexts",
    "Cut",
    "ExampleStream",
    "Examples",
    "Infilling",
    "Instruction",
    "Masked",
    "Mixture",
    "MixtureStream",
    "NextSentence",
    "Objective",
    "Part",
    "PrefixLM",
    "Sentence",
    "SentenceExamples",
    "SentenceIndex",
    "SentenceOrder",
    "SingleObjective",
    "SpanCorruption",
    "SpecialToken",
    "Vocabulary",
    "add_special_tokens",
    "build_objective",
]
