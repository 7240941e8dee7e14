"""Right or wrong by RULER's string match, accuracies with intervals, and the best visible context with how sure it is.

    all   score = share of the answers that occur in what the model wrote
    part  score = 1 if one of the answers does, else 0

Capital letters count as small ones. The interval of an accuracy is Wilson's score interval.

How sure the best visible context is comes from the bootstrap over questions: all visible contexts are asked the same ones,
so each resample draws questions with all their scores, and its best context is where its mean score is greatest.

Legend of shapes: Q questions, V visible contexts.
"""

import re
from collections.abc import Sequence

import numpy as np

from contextwise.base.intervals import RESAMPLES, draw_counts
from contextwise.evaluation.measures.ruler.questions import Match

_CONTROL = re.compile(r"[\x00-\x1f]")


def string_match(answer: str, wanted: Sequence[str], match: Match) -> float:
    """Score of one answer, 0 to 1.

    Args:
        answer: what the model wrote.
        wanted: what is looked for in it.
    """
    written = _CONTROL.sub("\n", answer).lower()
    found = [text.lower() in written for text in wanted]
    return float(any(found)) if match == "part" else sum(found) / len(found)


def best_shares(scores_QV: np.ndarray) -> np.ndarray:
    """Share of bootstrap resamples in which each visible context is the best, (V,); they sum to 1.

    Where several are equally good in a resample, each gets an equal part of it.
    """
    questions, contexts = scores_QV.shape
    shares = np.zeros(contexts)
    for counts in draw_counts(questions):
        means = counts @ scores_QV / questions
        best = np.isclose(means, means.max(axis=1, keepdims=True), rtol=0, atol=1e-12)
        shares += (best / best.sum(axis=1, keepdims=True)).sum(axis=0)
    return shares / RESAMPLES
