"""How much of its context a model uses: its loss at each number of visible tokens, and what follows from it.

A trainer's average loss ranks models of different contexts wrongly (context scaling, Section 2). The contextwise loss curve
does not: it is the mean loss at each number of visible tokens, over the same documents.
"""

from contextwise.evaluation.measures.curve.results import ContextwiseCurve
from contextwise.evaluation.measures.curve.running import CurveSettings, measure_contextwise

__all__ = ["ContextwiseCurve", "CurveSettings", "measure_contextwise"]
