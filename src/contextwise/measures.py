"""Measures of models, for packages that add one: :class:`Measure`, what it is given, and the scoring of documents.

Each name is imported when it is first used; settings are checked without torch (docs/extend.md).
"""

from typing import TYPE_CHECKING

from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.evaluation.kernel import InputFile, Measure, Outcome, Result, Subject, Work, measure
    from contextwise.evaluation.kernel.subject import positions
    from contextwise.evaluation.measures.curve import Curve
    from contextwise.evaluation.measures.loss import Evaluation, Loss
    from contextwise.evaluation.sampling import Sampling
    from contextwise.evaluation.scoring.windows import batches, check_tokens, score_documents

__all__ = ["Curve", "Evaluation", "InputFile", "Loss", "Measure", "Outcome", "Result", "Sampling", "Subject"]
__all__ += ["Work", "batches", "check_tokens", "measure", "positions", "score_documents"]
__getattr__, __dir__ = lazy_exports(__name__)
