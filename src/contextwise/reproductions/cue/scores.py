"""Perplexities of rows of a table on the same articles, their differences, and how much of a gain is kept; with intervals.

Shapes: S seeds, A articles.
"""

from dataclasses import dataclass

import numpy as np

from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate, exponential
from contextwise.base.intervals import bootstrap_estimate, estimate
from contextwise.evaluation.measures.loss import Evaluation


@dataclass(frozen=True)
class Scored:
    """One row of a table.

    Attributes:
        nats: (S, A) sums over each article, a row a seed.
        targets: (A,).
    """

    nats: np.ndarray
    targets: np.ndarray

    @classmethod
    def of(cls, evaluations: list[Evaluation]) -> "Scored":
        """From the evaluations of each seed's run, on the same documents.

        Raises:
            DataError: they are of others.
        """
        tokens = [evaluation.documents["tokens"].to_numpy() for evaluation in evaluations]
        if any(not np.array_equal(tokens[0], other) for other in tokens[1:]):
            raise DataError(
                "the evaluations of several seeds are not of the same sentences; evaluate them again"
            )
        return cls(
            np.stack([evaluation.documents["nats"].to_numpy() for evaluation in evaluations]),
            tokens[0].astype(np.float64),
        )

    @property
    def loss(self) -> Estimate:
        """Nats per target, with its interval."""
        return estimate([self.nats], self.targets)

    @property
    def perplexity(self) -> Estimate:
        return self.loss.map(exponential)

    def minus(self, other: "Scored") -> Estimate:
        """Difference of the losses, paired by article and seed.

        Raises:
            DataError: the two are of other sentences.
        """
        if not np.array_equal(self.targets, other.targets):
            raise DataError("two rows were scored on different sentences; evaluate both on the same split")
        if len(self.nats) == len(other.nats):
            return estimate([self.nats - other.nats], self.targets)
        return estimate([self.nats, -other.nats], self.targets)

    def relative(self, other: "Scored") -> Estimate:
        """Perplexity over the other's, minus one: -0.25 for a quarter less."""
        return self.minus(other).map(lambda nats: exponential(nats) - 1)


def kept_gain(part: Scored, base: Scored, best: Scored) -> Estimate:
    """How much of the gain in perplexity from ``base`` to ``best`` the row ``part`` has: 1 for all of it.

    (PPL_base - PPL_part) / (PPL_base - PPL_best), of the means over seeds, with a percentile bootstrap interval over articles;
    no interval where there is one article.
    """
    weights = part.targets
    rows = tuple(row.nats.mean(axis=0) for row in (part, base, best))

    def statistic(*arrays: np.ndarray, axis: int) -> np.ndarray:
        *sums, sizes = arrays
        total = sizes.sum(axis=axis)
        ppl_part, ppl_base, ppl_best = (np.exp(row.sum(axis=axis) / total) for row in sums)
        return (ppl_base - ppl_part) / (ppl_base - ppl_best)

    value = float(statistic(*rows, weights, axis=-1))
    return bootstrap_estimate(value, (*rows, weights), statistic)
