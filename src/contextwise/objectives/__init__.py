"""Pretraining objectives: from documents to examples. One file each; see :mod:`contextwise.objectives.objective`.

Importing this package imports neither torch nor the corpus reader, so that recipes are checked without them.
"""

from contextwise.objectives.causal import Causal
from contextwise.objectives.contexts import ContextTexts
from contextwise.objectives.infilling import Infilling
from contextwise.objectives.instruction import Instruction
from contextwise.objectives.masked import Masked
from contextwise.objectives.mixture import Mixture, MixtureStream, Part
from contextwise.objectives.objective import NO_LOSS, Cut, Examples, ExampleStream, Objective, SingleObjective
from contextwise.objectives.prefix import PrefixLM
from contextwise.objectives.registry import AnyObjective, build_objective, objectives
from contextwise.objectives.sentence import Sentence, SentenceExamples
from contextwise.objectives.sentence_pairs import NextSentence, SentenceOrder
from contextwise.objectives.spans import SpanCorruption
from contextwise.objectives.splitting import SentenceIndex
from contextwise.objectives.ul2 import UL2
from contextwise.objectives.vocabulary import SpecialToken, Vocabulary, add_special_tokens

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
    "objectives",
]
