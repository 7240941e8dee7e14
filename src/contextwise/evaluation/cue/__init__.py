"""Sentence models and models of sentences given their contexts (CUE): scored sentence by sentence, and used for rescoring."""

from contextwise.evaluation.cue.conditioning import is_cue
from contextwise.evaluation.cue.evaluator import evaluate_sentences
from contextwise.evaluation.cue.rescoring import Candidate, Ranked, rescore

__all__ = ["Candidate", "Ranked", "evaluate_sentences", "is_cue", "rescore"]
