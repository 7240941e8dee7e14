"""Pretraining objectives: from documents to examples; see :mod:`.objective`. Importing it loads neither torch nor a corpus."""

from contextwise.objectives.kind import Kind
from contextwise.objectives.objective import (
    NO_LOSS,
    AnyObjective,
    Cut,
    Examples,
    ExampleStream,
    Objective,
    SingleObjective,
    Stream,
    WindowExamples,
    build_objective,
    generator,
)
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary, add_special_tokens

__all__ = ["NO_LOSS", "AnyObjective", "Cut", "ExampleStream", "Examples", "Kind", "Objective"]
__all__ += ["SingleObjective", "SpecialToken", "Stream", "Vocabulary", "WindowExamples", "add_special_tokens"]
__all__ += ["build_objective", "generator"]
