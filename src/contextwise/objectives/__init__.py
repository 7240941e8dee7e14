"""Pretraining objectives: from documents to examples; see :mod:`.objective`. Importing it loads neither torch nor a corpus."""

from contextwise.objectives.causal import Causal
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
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary, add_special_tokens

__all__ = ["NO_LOSS", "AnyObjective", "Causal", "Cut", "ExampleStream", "Examples"]
__all__ += ["MixtureStream", "Objective", "SingleObjective", "SpecialToken", "Vocabulary"]
__all__ += ["WindowExamples", "add_special_tokens", "build_objective"]
