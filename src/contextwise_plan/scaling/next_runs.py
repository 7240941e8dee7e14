"""Choice of the next run: the one that would narrow the intervals of a plan most.

The ensemble gives the covariance of candidate runs and the answer, loss and size: a run whose losses differ between the laws
in step with the recommended size shows which of them is right. A candidate's measured losses y (ln L at some budgets along it)
would shrink the variance of an answer t from Var t to

    Var t - Cov(t, y) (Var y + S)^-1 Cov(y, t),

the linear (Kalman) update, where S is the noise of a run: an effect that its points share, and one of each point. The remaining
width is the root of that ratio.

Legend: R laws, K points along a candidate, T answers.
"""

from dataclasses import dataclass

import numpy as np

from contextwise.base.estimates import count
from contextwise_plan.scaling.analysis import Analysis
from contextwise_plan.scaling.forms import Array
from contextwise_plan.scaling.observations import EARLY
from contextwise_plan.scaling.optimum import Cost, Optimum

POINTS = 8
SHOWN = 5
LONGER = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Tokens of candidates, in those of the longest run of the size."""
SHARE = 0.1
"""A candidate costs at most this share of the planned run, or what the sweep's largest run cost if that is more."""
ENOUGH = 0.9
"""Of the runs of a size and context, the cheapest is chosen that narrows this share of what the best of them does."""


@dataclass(frozen=True)
class Candidate:
    """A run that could be added.

    Attributes:
        size, context, tokens, flops: of the run; a size that the sweep does not have is named by its parameters.
        new: whether the sweep has no run of that size and context.
        loss_left, parameters_left: remaining share of the width of each interval (None: no such interval).
    """

    size: str
    context: int
    tokens: float
    flops: float
    new: bool
    loss_left: float
    parameters_left: float | None

    @property
    def left(self) -> float:
        """Geometric mean of the remaining shares."""
        shares = [x for x in (self.loss_left, self.parameters_left) if x is not None]
        return float(np.exp(np.mean(np.log(np.maximum(shares, 1e-6)))))


def next_runs(analysis: Analysis, samples: Optimum, flops: Cost, planned: float) -> list[Candidate]:
    """The candidates that narrow most, the best first; one for each size and context.

    Args:
        samples: the ensemble's optima.
        flops: cost of a token.
        planned: FLOPs of the planned run.
    """
    observed = analysis.observed
    limit = max(float(observed.flops.max()), SHARE * planned)
    answers = [np.log(samples.loss)]
    if len(observed.sizes) > 1 and np.ptp(samples.parameters):
        answers.append(np.log(samples.parameters))
    contexts = np.unique(observed.context)
    sizes = observed.size_parameters.tolist()
    if len(sizes) > 1:  # one more, as much larger as the last was
        sizes.append(sizes[-1] ** 2 / sizes[-2])
    # Variances of ln L: of the effect of a run, and of a single point.
    run, residuals = observed.run, analysis.residuals
    spread = residuals - (np.bincount(run, residuals) / np.bincount(run))[run]
    noise = float((analysis.run_effects**2).mean()), float((spread**2).mean())

    def candidate(size: int, context: float, tokens: float, each: float) -> Candidate:
        budgets = tokens * np.geomspace(EARLY, 1, POINTS)
        losses = np.log(analysis.ensemble.loss(context, sizes[size], budgets[None]))  # (R, K)
        left = remaining_widths(np.stack(answers, axis=1), losses, *noise).tolist()
        return Candidate(
            size=observed.sizes[size] if size < len(observed.sizes) else count(sizes[size]),
            context=round(context),
            tokens=tokens,
            flops=tokens * each,
            new=not ((observed.size == size) & (observed.context == context)).any(),
            loss_left=left[0],
            parameters_left=left[1] if len(left) > 1 else None,
        )

    best = []
    for size, parameters in enumerate(sizes):
        longest = float(observed.tokens[observed.size == min(size, len(observed.sizes) - 1)].max())
        for context in (contexts[0] / 2, *contexts, contexts[-1] * 2):
            each = float(flops.per_token(parameters, context))
            longs = [long * longest for long in LONGER if long * longest * each <= limit]
            rows = [candidate(size, context, tokens, each) for tokens in longs]
            if rows:
                most = min(row.left for row in rows)
                best.append(next(row for row in rows if 1 - row.left >= ENOUGH * (1 - most)))
    return sorted(best, key=lambda row: row.left)[:SHOWN]


def remaining_widths(answers: Array, losses: Array, effects: float, point: float) -> Array:
    """(T,) remaining shares of the widths of ``answers`` (R, T) once ``losses`` (R, K) are known up to their noise.

    Args:
        effects, point: variances of the noise, of a whole run and of each point.
    """
    t, y = answers - answers.mean(0), losses - losses.mean(0)
    degrees = len(t) - 1
    noise = effects + (point + 1e-12) * np.eye(y.shape[1])
    cross = y.T @ t / degrees  # (K, T)
    gained = np.einsum("kt,kt->t", cross, np.linalg.solve(y.T @ y / degrees + noise, cross))
    variance = (t**2).sum(0) / degrees
    return np.sqrt(np.clip(1 - gained / np.maximum(variance, 1e-300), 0, 1))
