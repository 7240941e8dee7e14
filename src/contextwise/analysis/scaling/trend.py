"""The trend of the best training context: where a sweep measured it, and how it grows with the budget.

1. At each budget the *best context* of a size is the lowest point of a parabola in ln l through the losses near the lowest one.
2. ln l = c + g ln F + h ln N is fitted to these, over budgets F and sizes N, by least squares with a prior for g and h: noise
   moves an optimum by a quarter or so, and the budgets of a sweep span little, so that alone it hardly determines g. The prior
   is what other sweeps measured (``benchmarks/results/sweeps``).

A law of the loss has an optimum too, but in runs that are far from trained to the end its form is wrong in the one respect that
matters here, how fast long contexts catch up, and its interval does not know (docs/plan.md compares both on real sweeps).

Legend: n measured optima, S samples.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student

from contextwise.analysis.optimum import Landscape, budget_words
from contextwise.analysis.scaling.forms import Array, Law
from contextwise.analysis.scaling.observations import Observations
from contextwise.analysis.scaling.optimum import Cost, Optimum
from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate, count
from contextwise.base.intervals import plus_minus

NEAR = 4.5
"""The parabola goes through contexts within this factor of the one with the lowest loss."""
STEP = 2.0
"""Its lowest point may be this factor from that context at most."""
BUDGETS = 8
"""Budgets of a size at which the best context is read off, evenly spaced in the logarithm."""
WEIGHT = 0.5
"""Of each of these in the estimate of the spread: the budgets of a run share its beginning."""


class Powers(NamedTuple):
    """Prior of the powers with which the best context grows, a mean and a standard deviation each.

    ``spread`` is the standard deviation with which a sweep locates an optimum, in ln l, and counts as ``freedom`` optima.
    """

    budget: tuple[float, float] = (0.5, 0.25)
    size: tuple[float, float] = (-0.6, 0.2)
    spread: float = 0.3
    freedom: int = 4


MEASURED = Powers()
METHOD = "trend of measured optima"
"""How the interval of a context was computed."""


@dataclass(frozen=True)
class Trend:
    """A fitted trend; logarithms are relative to ``centre``, (ln N, ln F).

    Attributes:
        mean, covariance: (3,) and (3, 3), of c, g and h.
        spread: standard deviation with which a sweep locates an optimum, in ln l; ``freedom``: of its estimate.
        measured: (n, 3) parameters, budget and best context.
    """

    centre: Array
    mean: Array
    covariance: Array
    spread: float
    freedom: float
    measured: Array

    def growth(self, confidence: float) -> Estimate:
        """The power of the budget with which the best context grows."""
        half = student.ppf((1 + confidence) / 2, self.freedom) * np.sqrt(self.covariance[1, 1])
        return plus_minus(float(self.mean[1]), float(half), method="t", confidence=confidence)

    def sentence(self, unit: str, confidence: float) -> str:
        """Where the sweep measured the best context, and how it grows."""
        several, growth = bool(np.ptp(self.measured[:, 0])), self.growth(confidence)
        ends = [
            f"{context:.0f} ({f'{count(parameters)} parameters, ' * several}{budget_words(unit, budget)})"
            for parameters, budget, context in self.measured[self.measured[:, 1].argsort()][[0, -1]]
        ]
        return (
            f"The context follows the trend of the best contexts that the sweep measured, from {ends[0]} to {ends[1]}: it "
            f"grows with the power {growth.value:.2f} {growth.interval('.2f')} of the budget{' at one size' * several}."
        )

    def context(self, budget: ArrayLike, parameters: ArrayLike) -> Array:
        """The best context in tokens, the median of what a sweep would locate; shapes broadcast."""
        return np.asarray(np.exp(self._design(budget, parameters) @ self.mean), dtype=np.float64)

    def samples(self, budget: float, parameters: Array, seed: int = 0) -> Array:
        """(S,) best contexts that a sweep may locate, one for each of the ``parameters`` (S,), in even quantiles.

        The interval of their quantiles is that of the trend and of locating an optimum together.
        """
        design = self._design(budget, parameters)
        error = np.sqrt(self.spread**2 + np.einsum("si,ij,sj->s", design, self.covariance, design))
        quantiles = (np.random.default_rng(seed).permutation(len(parameters)) + 0.5) / len(parameters)
        return np.asarray(np.exp(design @ self.mean + error * student.ppf(quantiles, self.freedom)), dtype=np.float64)

    def followed(self, law: Law, optimum: Optimum, cost: Cost, budget: float, contexts: tuple[float, float]) -> Optimum:
        """A law's optimum, or those of an ensemble, at the trend's context for the same sizes; ``contexts`` are its bounds.

        The context of an ensemble's laws is drawn (:meth:`samples`), that of a single law is the median.
        """
        sizes = optimum.parameters
        context = self.context(budget, sizes) if law.theta.ndim == 1 else self.samples(budget, sizes)
        context = np.clip(context, *contexts)
        tokens = budget / cost.per_token(sizes, context)
        return Optimum(sizes, context, tokens, law.loss(context, sizes, tokens))

    def _design(self, budget: ArrayLike, parameters: ArrayLike) -> Array:
        budget, parameters = np.broadcast_arrays(np.asarray(budget, np.float64), np.asarray(parameters, np.float64))
        log_n, log_f = np.log(parameters) - self.centre[0], np.log(budget) - self.centre[1]
        return np.stack([np.ones_like(log_n), log_f, log_n], axis=-1)


def fit_trend(observed: Observations, unit: str = "flops", powers: Powers = MEASURED) -> Trend:
    """The trend of the best contexts that a sweep measured, over budgets of ``flops`` or ``seconds``.

    Raises:
        DataError: at no budget was a size's best context compared with its neighbours.
    """
    found = [
        (parameters, *optimum)
        for size, parameters in zip(observed.sizes, observed.size_parameters.tolist(), strict=True)
        for optimum in measured_optima(observed, size, unit)
    ]
    if not found:
        raise DataError("the sweep measured no best context: at no budget was a size trained at three contexts")
    measured = np.array(found)
    log_n, log_f, log_l = np.log(measured).T
    centre = np.array([log_n.mean(), log_f.mean()])
    design = np.stack([np.ones(len(log_l)), log_f - centre[1], log_n - centre[0]], axis=1)
    # The prior as two more rows, in units of the spread; c has none.
    means, deviations = np.array([powers.budget, powers.size]).T
    rows = np.diag([0.0, *(powers.spread / deviations)])[1:]
    inverse = np.linalg.inv(design.T @ design + rows.T @ rows)
    mean = inverse @ (design.T @ log_l + rows.T @ (rows[:, 1:] @ means))
    squares = float(np.square(log_l - design @ mean).sum())
    freedom = powers.freedom + WEIGHT * len(log_l)
    variance = (powers.freedom * powers.spread**2 + WEIGHT * squares) / freedom
    return Trend(centre, mean, inverse * variance, float(np.sqrt(variance)), freedom, measured)


def measured_optima(observed: Observations, size: str, unit: str = "flops") -> list[tuple[float, float]]:
    """Budgets, ascending, at which a size's best context was compared with its neighbours, and that best context.

    Where the shortest or longest context is the best one, the optimum may be beyond: it counts only if there is no other.
    """
    own = [point for point in observed.points if point.size == size]
    landscape = Landscape(own, unit, {size: observed.planned[size]})
    told = [i for i, optima in enumerate(landscape.optima) if size in optima and optima[size].decided]
    told = [i for i in told if not landscape.optima[i][size].edge] or told
    steps: list[int] = np.unique(np.linspace(0, len(told) - 1, BUDGETS).round()).astype(int).tolist() if told else []
    optima = []
    for step in (told[i] for i in steps):
        cells = sorted(landscape.cells[step], key=lambda cell: cell.context)
        contexts, losses = np.array([(cell.context, cell.loss) for cell in cells], dtype=np.float64).T
        if len(contexts) > 2:
            optima.append((float(landscape.budgets[step]), lowest_point(contexts, losses)))
    return optima


def lowest_point(contexts: Array, losses: Array) -> float:
    """The lowest point of a parabola in ln l through the losses within :data:`NEAR` of the lowest, near that and inside all."""
    best = int(losses.argmin())
    x = np.log(contexts / contexts[best])
    near = np.abs(x) <= np.log(NEAR)
    if near.sum() < 3:
        return float(contexts[best])
    curve, slope, _ = np.polyfit(x[near], losses[near], 2)
    if curve <= 0:
        return float(contexts[best])
    low, high = max(x[0], -np.log(STEP)), min(x[-1], np.log(STEP))
    return float(contexts[best] * np.exp(np.clip(-slope / (2 * curve), low, high)))
