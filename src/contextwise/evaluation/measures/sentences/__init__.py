"""Sentence models and models of sentences given their contexts (CUE): scored sentence by sentence, and used for rescoring."""

from contextwise.evaluation.measures.rescoring.ranking import Candidate, Ranked, rescore
from contextwise.evaluation.measures.sentences.conditioning import is_cue
from contextwise.evaluation.measures.sentences.running import evaluate_sentences

__all__ = ["Candidate", "Ranked", "evaluate_sentences", "is_cue", "rescore"]
