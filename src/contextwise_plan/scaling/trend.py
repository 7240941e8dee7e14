"""The trend of the best training context: where a sweep measured it, and how it grows with the budget (docs/plan.md).

    y_i = c + g f_i + h n_i + Σ_r a_ir d_r + e_i,    d_r ~ N(0, ρ²),    e_i ~ N(0, σ²)

y, f and n are ln of the measured best contexts, budgets and sizes; g and h have a normal prior. e_i is the scatter of a budget;
the posterior of σ is computed on a grid, and given σ everything else is normal. d_r is by how much the losses of a size at a
context are off at all budgets alike, since these are one run; the lowest point follows them with the weights a_ir of its
parabola. ρ is the deviation of the losses from the parabolas. Legend: n measured optima, K values of σ, S samples.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from contextwise.settings import DataError
from contextwise.stats import Estimate
from contextwise_plan.optimum import Landscape
from contextwise_plan.scaling.forms import Array, Law
from contextwise_plan.scaling.observations import Observations
from contextwise_plan.scaling.optimum import Cost, Optimum
from contextwise_plan.tracks import budget_words

NEAR = 4.5  # the parabola goes through contexts within this factor of the one with the lowest loss
STEP = 2.0  # its lowest point may be this factor from that context at most
SPREADS = np.geomspace(0.005, 2.0, 80)  # values of σ, in ln l
LEAST_DEVIATION = 1e-6  # of losses, in nats


class Powers(NamedTuple):
    """Prior of the powers with which the best context grows, a mean and a standard deviation each.

    σ² has a scaled inverse χ² prior: about ``spread``², which counts as ``freedom`` optima. ``spread`` is also the
    deviation of an optimum by ρ where the losses say nothing of it.
    """

    budget: tuple[float, float] = (0.6, 0.3)
    size: tuple[float, float] = (-0.7, 0.25)
    spread: float = 0.15
    freedom: int = 2


MEASURED = Powers()
METHOD = "trend of measured optima"  # how the interval of a context was computed


@dataclass(frozen=True)
class Trend:
    """A fitted trend; logarithms are relative to ``centre``, (ln N, ln F)."""

    centre: Array
    weights: Array  # (K,) posterior of the spreads
    means: Array  # (K, 3), of c, g and h for each of them
    covariances: Array  # (K, 3, 3)
    spreads: Array  # (K,), with which a budget locates an optimum, in ln l
    measured: Array  # (n, 3): parameters, budget and best context
    sizes: tuple[str, ...]  # with a measured optimum, by parameters
    powers: Powers  # their prior

    @property
    def mean(self) -> Array:
        """(3,) posterior mean of c, g and h."""
        return np.asarray(self.weights @ self.means)

    def growth(self, confidence: float) -> Estimate:
        """The power of the budget with which the best context grows."""
        levels = np.array([1 - confidence, 1 + confidence]) / 2
        low, high = self._quantiles(levels, np.eye(3)[1], located=False).tolist()
        return Estimate(float(self.mean[1]), low, high, method="posterior", confidence=confidence)

    def prior_weight(self, index: int) -> float:
        """By how much g (1) or h (2) changes with the mean of its prior: by all of it, 1, where the sweep says nothing."""
        _, deviation = (self.powers.budget, self.powers.size)[index - 1]
        return float(self.weights @ self.covariances[:, index, index]) / deviation**2

    def sentence(self, unit: str, size: str, growth: Estimate) -> str:
        """Why a model near ``size`` gets its context: what was measured, and the power of its ``growth``, with the prior."""
        own = np.unique(self.measured[:, 0])[self.sizes.index(size)]
        optima = self.measured[self.measured[:, 0] == own]
        (_, low, first), (_, high, last) = optima[[0, -1]]
        measured = f"is {first:.0f} for {size} (at {budget_words(unit, low)}, the only budget that locates it)"
        if len(optima) > 1:
            spans = f"{budget_words(unit, low)} to {budget_words(unit, high)}"
            measured = f"goes from {first:.0f} to {last:.0f} for {size} ({spans})"
        verdict = {True: "grows", False: "falls", None: "may grow or fall,"}[growth.above(0.0)]
        share = f"{self.prior_weight(1):.0%}" if self.prior_weight(1) >= 0.01 else "under 1%"
        return (
            f"The best context, by parabolas through the sweep's losses, {measured}. With a prior from published sweeps "
            f"({share} of the weight) it {verdict} with the power {growth:.2f} of the budget."
        )

    def context(self, budget: ArrayLike, parameters: ArrayLike) -> Array:
        """The best context in tokens, by the mean of ln l; shapes broadcast."""
        return np.asarray(np.exp(self._design(budget, parameters) @ self.mean), dtype=np.float64)

    def samples(self, budget: float, parameters: Array, seed: int = 0) -> Array:
        """(S,) best contexts that a sweep may locate, one for each of the ``parameters`` (S,), in even quantiles.

        The interval of their quantiles is that of the trend and of locating an optimum together.
        """
        levels = (np.random.default_rng(seed).permutation(len(parameters)) + 0.5) / len(parameters)
        return np.asarray(np.exp(self._quantiles(levels, self._design(budget, parameters))), dtype=np.float64)

    def _quantiles(self, levels: Array, design: Array, located: bool = True) -> Array:
        """(S,) quantiles of ``design`` (S, 3) or (3,) times the coefficients, with σ if ``located``; by bisection."""
        design = np.broadcast_to(design, (len(levels), 3))
        means = design @ self.means.T  # (S, K)
        variances = np.einsum("si,kij,sj->sk", design, self.covariances, design)
        errors = np.sqrt(variances + self.spreads**2 * located)
        low, high = (means - 12 * errors).min(1), (means + 12 * errors).max(1)
        for _ in range(50):
            middle = (low + high) / 2
            below = ndtr((middle[:, None] - means) / errors) @ self.weights < levels
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray((low + high) / 2)

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


class Reading(NamedTuple):
    """A best context as a parabola locates it."""

    context: float  # in tokens
    curve: float  # coefficient of (ln l)² of the parabola
    slopes: Mapping[float, float]  # by how much its slope at the lowest loss changes with each context's loss
    squares: float  # sum of the squared residuals of the losses
    freedom: int  # their degrees of freedom


def fit_trend(observed: Observations, unit: str = "flops", powers: Powers = MEASURED) -> Trend:
    """The trend of the best contexts that a sweep measured, over budgets of ``flops`` or ``seconds``.

    A DataError if at no budget the best context of any size was between two others.
    """
    by_size = [measured_optima(observed, size, unit) for size in observed.sizes]
    located = [size for size, optima in enumerate(by_size) if optima]
    if not located:
        raise DataError(
            f"at no budget ({unit}) does the sweep locate the best context of a size between two others, so that none can be "
            f"planned; train the contexts of a size for about the same {unit}, and add contexts beyond its best one"
            f"{observed.findings(unit)}"
        )
    size, budgets, readings = zip(*((i, *optimum) for i in located for optimum in by_size[i]), strict=True)
    runs = sorted({(i, context) for i, reading in zip(size, readings, strict=True) for context in reading.slopes})
    weights = _weights(size, readings, runs)
    parameters, contexts = observed.size_parameters[list(size)], np.array([reading.context for reading in readings])
    log_n, log_f, log_l = np.log(parameters), np.log(budgets), np.log(contexts)
    centre = np.array([log_n.mean(), log_f.mean()])
    design = np.stack([np.ones(len(log_l)), log_f - centre[1], log_n - centre[0]], axis=1)
    design = np.concatenate([design, weights], axis=1)  # c, g, h and d of each size and context
    prior_mean = np.array([0.0, powers.budget[0], powers.size[0], *np.zeros(len(runs))])
    shared = max(_deviation(readings, weights, powers.spread), LEAST_DEVIATION)
    deviations = np.array([powers.budget[1], powers.size[1], *np.full(len(runs), shared)])
    precision = np.diag([0.0, *deviations**-2])
    logs, means, covariances = [], [], []
    for spread in SPREADS:
        inverse = np.linalg.inv(design.T @ design / spread**2 + precision)
        mean = inverse @ (design.T @ log_l / spread**2 + precision @ prior_mean)
        off = mean - prior_mean
        squares = np.square(log_l - design @ mean).sum() / spread**2 + off @ precision @ off
        determinant = np.linalg.slogdet(inverse)[1] - 2 * len(log_l) * np.log(spread)
        of_spread = -powers.freedom * (2 * np.log(spread) + (powers.spread / spread) ** 2)
        logs.append((determinant - squares + of_spread) / 2)  # on a grid that is even in ln σ
        means.append(mean[:3])
        covariances.append(inverse[:3, :3])
    posterior = np.exp(np.array(logs) - max(logs))
    measured = np.stack([parameters, budgets, contexts], axis=1)
    names = tuple(observed.sizes[i] for i in located)
    posterior /= posterior.sum()
    return Trend(centre, posterior, np.array(means), np.array(covariances), SPREADS, measured, names, powers)


def _weights(sizes: Sequence[int], readings: Sequence[Reading], runs: Sequence[tuple[int, float]]) -> Array:
    """(n, runs) by how much each best context, in ln l, changes with the losses of each size at a context.

    A parabola's lowest point is minus its slope over twice its curve. The curve is the mean of a size: by its own an optimum
    that noise has moved far would also count as an uncertain one.
    """
    rows = []
    for size, reading in zip(sizes, readings, strict=True):
        curve = np.mean([other.curve for of, other in zip(sizes, readings, strict=True) if of == size])
        rows.append([-reading.slopes.get(at, 0.0) * (of == size) / (2 * curve) for of, at in runs])
    return np.array(rows)


def _deviation(readings: Sequence[Reading], weights: Array, spread: float) -> float:
    """ρ, the deviation of the losses from the parabolas; where those have three points, what moves an optimum by ``spread``."""
    freedom = sum(reading.freedom for reading in readings)
    if freedom:
        return float(np.sqrt(sum(reading.squares for reading in readings) / freedom))
    return float(spread / np.sqrt(np.square(weights).sum(1).mean()))


def measured_optima(observed: Observations, size: str, unit: str = "flops") -> list[tuple[float, Reading]]:
    """Budgets, ascending, at which a size's best context was between two others, and that best context.

    As many as each run has measured budgets, evenly spaced in the logarithm from the highest, or their share where some do not
    count.
    """
    own = [point for point in observed.points if point.size == size]
    landscape = Landscape(own, unit, {size: observed.planned[size]})
    located = []
    for budget, optima, cells in zip(landscape.budgets.tolist(), landscape.optima, landscape.cells, strict=True):
        if size not in optima or not optima[size].inside:
            continue
        contexts, losses = np.array(sorted((cell.context, cell.loss) for cell in cells), dtype=np.float64).T
        reading = lowest_point(contexts, losses)
        if not np.isclose(reading.context, contexts[[0, -1]], rtol=1e-9).any():
            located.append((budget, reading))
    measured = Counter(point.cell for point in own)
    count = max(1, round(float(np.median(list(measured.values()))) * len(located) / len(landscape.budgets)))
    steps = np.unique(np.linspace(len(located) - 1, 0, count).round()).astype(int).tolist() if located else []
    return [located[step] for step in steps]


def lowest_point(contexts: Array, losses: Array) -> Reading:
    """The lowest point of a parabola in ln l through the lowest loss, its neighbours and what is within :data:`NEAR` of it.

    It stays near the lowest loss and inside all. Where the lowest loss has one neighbour, it is the lowest point itself.
    """
    best = int(losses.argmin())
    alone = Reading(float(contexts[best]), 0.0, {}, 0.0, 0)
    if not 0 < best < len(contexts) - 1:
        return alone
    x, beside = np.log(contexts / contexts[best]), np.abs(np.arange(len(contexts)) - best) <= 1
    for near in (beside | (np.abs(x) <= np.log(NEAR)), beside):
        powers = np.vander(x[near], 3)
        solve = np.linalg.pinv(powers)
        curve, slope, level = solve @ losses[near]
        if curve > 0:
            break
    else:
        return alone
    low, high = max(x[0], -np.log(STEP)), min(x[-1], np.log(STEP))
    context = float(contexts[best] * np.exp(np.clip(-slope / (2 * curve), low, high)))
    squares = np.square(losses[near] - powers @ [curve, slope, level]).sum()
    slopes = dict(zip(contexts[near].tolist(), solve[1].tolist(), strict=True))
    return Reading(context, float(curve), slopes, float(squares), int(near.sum()) - 3)
