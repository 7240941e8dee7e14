"""How good models are on held-out documents: a scoring pass, measures with intervals, comparisons."""

from contextwise.evaluation.comparison import Comparison, Difference, Group, compare
from contextwise.evaluation.evaluator import evaluate_model
from contextwise.evaluation.members import evaluate_missing
from contextwise.evaluation.metrics import Estimate, measures
from contextwise.evaluation.results import Evaluation
from contextwise.evaluation.scoring import Scores, score_documents

__all__ = [
    "Comparison",
    "Difference",
    "Estimate",
    "Evaluation",
    "Group",
    "Scores",
    "compare",
    "evaluate_missing",
    "evaluate_model",
    "measures",
    "score_documents",
]
