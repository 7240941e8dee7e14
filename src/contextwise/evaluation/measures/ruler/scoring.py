"""Right or wrong by RULER's string match, accuracies with intervals, and the best visible context with how sure it is.

    all   score = share of the answers that occur in what the model wrote
    part  score = 1 if one of the answers does, else 0

Capital letters count as small ones. The interval of an accuracy is Wilson's score interval, which says something even where all
the scores are 0 or 1; for scores between 0 and 1 it is wider than it need be, since their variance is at most p(1 - p).

How sure the best visible context is comes from the bootstrap over questions: all visible contexts are asked the same ones,
so each resample draws questions with all their scores, and its best context is where its mean score is greatest.

Legend of shapes: Q questions, V visible contexts.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
from scipy import stats

from contextwise.evaluation.measures.ruler.questions import Match
from contextwise.evaluation.metrics import CONFIDENCE, RESAMPLES, SEED, Estimate, resamples_at_once

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


def accuracy(scores: np.ndarray) -> Estimate:
    """Mean of scores (Q,) from 0 to 1, with Wilson's 95% interval."""
    count, mean = len(scores), float(np.mean(scores))
    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    centre = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    return Estimate(mean, max(0.0, centre - half), min(1.0, centre + half))


def best_shares(scores_QV: np.ndarray) -> np.ndarray:
    """Share of bootstrap resamples in which each visible context is the best, (V,); they sum to 1.

    Where several are equally good in a resample, each gets an equal part of it.
    """
    questions, contexts = scores_QV.shape
    draw = np.random.default_rng(SEED)
    shares = np.zeros(contexts)
    at_once = resamples_at_once(questions)
    for first in range(0, RESAMPLES, at_once):
        rows = min(at_once, RESAMPLES - first)
        chosen = draw.multinomial(questions, np.full(questions, 1 / questions), size=rows)
        means = chosen @ scores_QV / questions
        best = np.isclose(means, means.max(axis=1, keepdims=True), rtol=0, atol=1e-12)
        shares += (best / best.sum(axis=1, keepdims=True)).sum(axis=0)
    return shares / RESAMPLES
