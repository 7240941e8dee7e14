"""Mean scores of questions on documents, under several conditions, with intervals and paired differences.

A data set's score is the mean over its questions, a group's the mean over its data sets. Intervals are 95% t-intervals over
documents: all questions on a document, under all conditions, stay together. In the mean of several data sets, their squared
variances are added.

Where all documents agree there is no spread: the interval is then Wilson's, with the documents as its trials, and that of a
difference of 0 at every document ± z²/(D + z²), Wilson's upper limit for a change that was not observed.

Legend of shapes: Q questions, D documents, V conditions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from contextwise.base.intervals import Interval, joint, leave_one_out, over_documents
from contextwise.stats import Estimate, Part, wilson

EQUAL = 1e-24


@dataclass(frozen=True)
class Level:
    """Mean scores of a data set, a group or all of them, under each of several conditions: models, contexts, or measures.

    Attributes:
        values_V: mean scores.
        parts: of each data set: its weight in the mean, the sums of its scores (D, V) and its questions by document (D,).
        low_V, high_V: Wilson's interval, for scores without spread.
        unseen: half the interval of a difference that is 0 at every document.
    """

    values_V: np.ndarray
    parts: list[tuple[float, np.ndarray, np.ndarray]]
    low_V: np.ndarray
    high_V: np.ndarray
    unseen: float

    @property
    def documents(self) -> int:
        """Documents of the data set that has the fewest."""
        return min(len(sizes_D) for _, _, sizes_D in self.parts)

    def estimate(self, condition: int) -> Estimate:
        """Mean score under the condition of this index."""
        without_spread = float(self.low_V[condition]), float(self.high_V[condition])
        return self._estimate({condition: 1}, without_spread)

    def gain(self, condition: int, other: int) -> Estimate:
        """Score under ``other`` minus that under ``condition``, paired."""
        value = float(self.values_V[other] - self.values_V[condition])
        unseen = max(-1.0, value - self.unseen), min(1.0, value + self.unseen)
        return self._estimate({other: 1, condition: -1}, unseen)

    def _estimate(self, signs: dict[int, int], without_spread: Interval) -> Estimate:
        """The sum of some scores, each with a sign, and its 95% interval."""
        value, parts = sum(sign * float(self.values_V[i]) for i, sign in signs.items()), []
        for share, sums_DV, sizes_D in self.parts:
            sums_D = np.sum([sign * sums_DV[:, i] for i, sign in signs.items()], axis=0)
            part = over_documents(sums_D.sum() / sizes_D.sum(), leave_one_out(sums_D, sizes_D), sizes_D)
            if part is None:
                return Estimate(value)
            parts.append(Part(share**2 * part.variance, part.freedom))
        both = joint(parts)
        half = both.half_width
        if half**2 < EQUAL:
            return Estimate(value, *without_spread, method="Wilson", documents=self.documents)
        least = 0.0 if min(signs.values()) > 0 else -1.0
        limits = max(least, value - half), min(1.0, value + half)
        about: dict[str, Any] = {
            "method": "t",
            "documents": self.documents,
            "freedom": both.freedom,
            "parts": tuple(parts),
        }
        return Estimate(value, *limits, **about)


def level_of(scores_QV: np.ndarray, documents: Sequence[str]) -> Level:
    """The level of one data set; ``documents`` names the document of each question."""
    _, document_Q = np.unique(np.array(documents), return_inverse=True)
    sizes_D = np.bincount(document_Q)
    sums_DV = np.zeros((len(sizes_D), scores_QV.shape[1]))
    np.add.at(sums_DV, document_Q, scores_QV)
    values_V = scores_QV.mean(axis=0)
    low_V, high_V = np.array([wilson(float(value), len(sizes_D)).limits for value in values_V]).T
    return Level(values_V, [(1.0, sums_DV, sizes_D)], low_V, high_V, wilson(0.0, len(sizes_D)).limits[1])


def mean_level(levels: Sequence[Level]) -> Level:
    """The mean of several levels, each with the same weight."""
    parts = [(share / len(levels), sums, sizes) for level in levels for share, sums, sizes in level.parts]
    values_V, low_V, high_V = np.mean([[x.values_V, x.low_V, x.high_V] for x in levels], axis=0)
    return Level(values_V, parts, low_V, high_V, float(np.mean([level.unseen for level in levels])))
