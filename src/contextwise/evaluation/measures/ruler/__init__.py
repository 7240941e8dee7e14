"""Position-weighted RULER: how well a model answers questions on long texts, at every visible context.

Intrinsic entropy, Appendix A: what is asked about stands at a place drawn by P(x) ∝ (1 - x/L)^γ, the model sees the nearest
part of the text only, and the accuracy against that part's size may have an optimum.
"""

from contextwise.evaluation.answering.prompts import Question
from contextwise.evaluation.measures.ruler.placement import place_probabilities
from contextwise.evaluation.measures.ruler.questions import Size
from contextwise.evaluation.measures.ruler.running import evaluate_ruler
from contextwise.evaluation.measures.ruler.settings import TASKS, Settings

__all__ = [
    "TASKS",
    "Question",
    "Settings",
    "Size",
    "evaluate_ruler",
    "place_probabilities",
]
