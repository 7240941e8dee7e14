"""Pretraining objectives: from documents to examples; see :mod:`.objective`. Importing it loads neither torch nor a corpus."""

from contextwise.objectives.causal import Causal
from contextwise.objectives.infilling import Infilling
from contextwise.objectives.instruction import Instruction
from contextwise.objectives.mixture import MixtureStream
from contextwise.objectives.objective import (
    NO_LOSS,
    AnyObjective,
    Cut,
    Examples,
    ExampleStream,
    Objective,
    SingleObjective,
    WindowExamples,
    build_objective,
)
from contextwise.objectives.spans import UL2, SpanCorruption
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary, add_special_tokens

__all__ = ["NO_LOSS", "UL2", "AnyObjective", "Causal", "Cut", "ExampleStream", "Examples", "Infilling", "Instruction"]
__all__ += ["MixtureStream", "Objective", "SingleObjective", "SpanCorruption", "SpecialToken", "Vocabulary"]
__all__ += ["WindowExamples", "add_special_tokens", "build_objective"]
