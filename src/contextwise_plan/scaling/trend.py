"""The trend of the best training context: where a sweep measured it, and how it grows with the budget.

1. At each budget the *best context* of a size is the lowest point of a parabola in ln l through the losses near the lowest one.
   Only budgets at which both the lowest loss and that point are between the shortest and the longest context count.
2. ln l = c + g ln F + h ln N is fitted to these, over budgets F and sizes N. The powers g and h have a normal prior, which is
   what other sweeps measured (``benchmarks/results/sweeps``). It is weighed against the sweep by the sweep's own spread:

       y_i = c + g f_i + h n_i + Σ_r a_ir d_r + e_i,    d_r ~ N(0, ρ²),    e_i ~ N(0, σ²)

   e_i is the scatter of a budget around the trend. σ is unknown; its posterior is computed on a grid, and given σ everything
   else is normal. d_r is by how much the losses of a size at a context are off at all budgets alike, since these are the same
   run further trained, on the same documents; the lowest point follows them with the weights a_ir of its parabola, and more
   budgets do not average them out. ρ is the deviation of the losses from the parabolas. A sweep without noise overrules the
   prior; one of few and noisy budgets does not.

A law of the loss has an optimum too, but in runs that are far from trained to the end its form is wrong in the one respect that
matters here, how fast long contexts catch up, and its interval does not know
(docs/results/planning.md compares both on real sweeps).

Legend: n measured optima, K values of σ, S samples.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate, count
from contextwise_plan.optimum import Cell, Landscape
from contextwise_plan.scaling.forms import Array, Law
from contextwise_plan.scaling.observations import Observations
from contextwise_plan.scaling.optimum import Cost, Optimum
from contextwise_plan.tracks import budget_words

NEAR = 4.5
"""The parabola goes through contexts within this factor of the one with the lowest loss."""
STEP = 2.0
"""Its lowest point may be this factor from that context at most."""
SPREADS = np.geomspace(0.005, 2.0, 80)
"""Values of σ, in ln l."""
SAME_SIZE = 0.01
"""Numbers of parameters whose ln differs by less are those of one size."""
LEAST_DEVIATION = 1e-6
"""Of losses, in nats."""
FEWEST = 3
"""Measured optima that say by themselves whether the best context grows."""


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
UNINFORMED = Powers(budget=(0.0, 100.0), size=(0.0, 100.0))
"""With which the powers are those of the sweep alone."""
METHOD = "trend of measured optima"
"""How the interval of a context was computed."""


@dataclass(frozen=True)
class Trend:
    """A fitted trend; logarithms are relative to ``centre``, (ln N, ln F).

    Attributes:
        weights: (K,) posterior of the ``spreads`` (K,), with which a budget locates an optimum, in ln l.
        means, covariances: (K, 3) and (K, 3, 3), of c, g and h for each of them.
        measured: (n, 3) parameters, budget and best context.
        sizes: those with a measured optimum, by parameters.
        powers: their prior.
    """

    centre: Array
    weights: Array
    means: Array
    covariances: Array
    spreads: Array
    measured: Array
    sizes: tuple[str, ...]
    powers: Powers

    @property
    def mean(self) -> Array:
        """(3,) posterior mean of c, g and h."""
        return np.asarray(self.weights @ self.means)

    @property
    def spread(self) -> float:
        """Posterior mean of σ."""
        return float(self.weights @ self.spreads)

    def growth(self, confidence: float) -> Estimate:
        """The power of the budget with which the best context grows."""
        return self._power(1, confidence)

    def _power(self, index: int, confidence: float) -> Estimate:
        levels = np.array([1 - confidence, 1 + confidence]) / 2
        low, high = self._quantiles(levels, np.eye(3)[index], located=False).tolist()
        return Estimate(float(self.mean[index]), low, high, method="posterior", confidence=confidence)

    def prior_weight(self, index: int) -> float:
        """By how much g (1) or h (2) changes with the mean of its prior: by all of it, 1, where the sweep says nothing."""
        _, deviation = (self.powers.budget, self.powers.size)[index - 1]
        return float(self.weights @ self.covariances[:, index, index]) / deviation**2

    def sentence(self, unit: str, size: str, parameters: float, alone: Estimate) -> str:
        """Why a model gets its context: what was measured, what that alone says of the growth, and what the prior adds.

        Args:
            size: the measured one that is nearest to the model's ``parameters``.
            alone: :meth:`growth` without a prior.
        """
        values = np.unique(self.measured[:, 0])
        optima = {name: self.measured[self.measured[:, 0] == own] for name, own in zip(self.sizes, values, strict=True)}
        most = max(optima, key=lambda name: len(optima[name]))
        most = most if len(optima[most]) > len(optima[size]) == 1 else size
        other = abs(np.log(parameters / optima[size][0, 0])) > SAME_SIZE
        words = " and ".join(_measured(unit, name, optima[name]) for name in dict.fromkeys((size, most)))
        alone_says = {True: "shows that it grows", False: "shows that it falls", None: "does not tell whether it grows"}
        growth = self.growth(alone.confidence)
        power = f"with the power {growth:.2f} of the budget"
        verdict = {True: f"grows {power}", False: f"falls {power}", None: f"goes {power}, so whether it grows is open"}
        shares = [self.prior_weight(index) for index in (1, 2)]
        weights = [f"{share:.0%}" if share >= 0.01 else "under 1%" for share in shares]
        sentences = [
            f"The best context that the sweep measured {words}.",
            f"Alone, this {alone_says[alone.above(0.0) if len(self.measured) >= FEWEST else None]} with the budget.",
            f"With a prior from published sweeps ({weights[0]} of the weight) it {verdict[growth.above(0.0)]}.",
        ]
        if other or most != size:
            source = most if most != size else "the sweep's sizes" if len(optima) > 1 else size
            sentences.append(
                f"Between {source} and {f'{count(parameters)} parameters' if other else size} it changes with the power "
                f"{self._power(2, alone.confidence):.2f} of the parameters ({weights[1]} prior)."
            )
        return " ".join(sentences)

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


def _measured(unit: str, size: str, optima: Array) -> str:
    """The measured best contexts of a size, as the end of a sentence."""
    (_, low, first), (_, high, last) = optima[[0, -1]]
    if len(optima) == 1:
        return f"is {first:.0f} for {size} (at {budget_words(unit, low)} alone)"
    return f"goes from {first:.0f} to {last:.0f} for {size} ({budget_words(unit, low)} to {budget_words(unit, high)})"


class Reading(NamedTuple):
    """A best context as a parabola locates it.

    Attributes:
        context: in tokens.
        curve: coefficient of (ln l)² of the parabola.
        slopes: by how much the parabola's slope at the lowest loss changes with the loss of each context.
        squares, freedom: sum of the squared residuals of the losses, and their degrees of freedom.
    """

    context: float
    curve: float
    slopes: Mapping[float, float]
    squares: float
    freedom: int


def fit_trend(observed: Observations, unit: str = "flops", powers: Powers = MEASURED) -> Trend:
    """The trend of the best contexts that a sweep measured, over budgets of ``flops`` or ``seconds``.

    Raises:
        DataError: at no budget was the best context of any size between two others.
    """
    by_size = [measured_optima(observed, size, unit) for size in observed.sizes]
    located = [size for size, optima in enumerate(by_size) if optima]
    if not located:
        raise _not_bracketed(observed, unit)
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
        squares = np.square(log_l - design @ mean).sum() / spread**2 + (mean - prior_mean) @ precision @ (
            mean - prior_mean
        )
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


def trend_for(observed: Observations, recommended: str, unit: str, far: bool) -> tuple[Trend | None, list[str]]:
    """The trend for a plan that recommends a size, and notes on sizes without a measured optimum.

    Args:
        far: no trend, and a note, where otherwise the plan would be refused.

    Raises:
        DataError: neither the recommended size, nor any, has a measured optimum.
    """
    try:
        trend = fit_trend(observed, unit)
    except DataError:
        if not far:
            raise
        why = "at no budget does the sweep show a best context between its shortest and its longest"
    else:
        ends = {size: end_of(observed, size, unit) for size in observed.sizes if size not in trend.sizes}
        if recommended not in ends:
            return trend, [
                f"No context is planned for {size}: {end.sentence(size)}; {end.advice}." for size, end in ends.items()
            ]
        why, advice = ends[recommended].sentence(recommended), ends[recommended].advice
        if not far:
            raise DataError(
                f"the best size for this budget is nearest to {recommended}, and {why}, so that no context can be planned for "
                f"it; {advice}, or set --far to get a guess"
            )
    return None, [f"{why[0].upper()}{why[1:]}: what is recommended is the law's alone."]


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

    As many as each run has measured budgets, evenly spaced in the logarithm, or their share where some do not count.
    """
    landscape = _of_size(observed, size, unit)
    inside = [i for i, optima in enumerate(landscape.optima) if size in optima and optima[size].inside]
    readings = [(float(landscape.budgets[i]), *_reading(landscape.cells[i])) for i in inside]
    located = [(budget, reading) for budget, reading, end in readings if end is None]
    measured = Counter(point.cell for point in observed.points if point.size == size)
    count = max(1, round(float(np.median(list(measured.values()))) * len(located) / len(landscape.budgets)))
    steps = np.unique(np.linspace(0, len(located) - 1, count).round()).astype(int).tolist() if located else []
    return [located[step] for step in steps]


def _reading(cells: Sequence[Cell]) -> tuple[Reading, int | None]:
    """The best context of one size at a budget, and the measured context at the end of all where it is there."""
    contexts, losses = np.array(sorted((cell.context, cell.loss) for cell in cells), dtype=np.float64).T
    reading = lowest_point(contexts, losses)
    return reading, next((int(end) for end in contexts[[0, -1]] if np.isclose(reading.context, end, rtol=1e-9)), None)


def _of_size(observed: Observations, size: str, unit: str) -> Landscape:
    return Landscape([point for point in observed.points if point.size == size], unit, {size: observed.planned[size]})


class End(NamedTuple):
    """The end of its contexts at which the best context of a size is, at the budgets at which it was compared.

    ``name`` is ``shortest`` or ``longest``, whichever is more frequent; empty, and ``context`` zero, if none was compared.
    ``planned``: whether the context is the end of all that the sweep has, not only of those measured at these budgets.
    """

    name: str
    context: int
    planned: bool = True

    @property
    def advice(self) -> str:
        """What to add to the sweep."""
        if not self.name or not self.planned:
            return "train its contexts for the same budgets"
        shorter = self.name == "shortest"
        return f"add {'shorter' if shorter else 'longer'} ones or {'larger' if shorter else 'smaller'} budgets"

    def sentence(self, size: str) -> str:
        """Why no context can be planned for a size, as a clause."""
        if not self.name:
            return f"at no budget was the best context of {size} compared with its neighbours"
        bound = "at most" if self.name == "shortest" else "at least"
        among = "tried" if self.planned else "measured at these budgets"
        where = f"mostly it is {bound} {self.context}, the {self.name} that was {among}"
        return f"at no budget does the sweep locate the best context of {size} between two others: {where}"


def end_of(observed: Observations, size: str, unit: str = "flops") -> End:
    """Where the best context of a size is that has no measured optimum."""
    landscape, planned = _of_size(observed, size, unit), sorted(observed.planned[size])
    some = [
        (optima[size], cells) for optima, cells in zip(landscape.optima, landscape.cells, strict=True) if size in optima
    ]
    ends = Counter[End]()
    for one, cells in some:
        context = one.cell.context if one.edge else _reading(cells)[1]
        if one.decided and context is not None:
            name = one.edge or ("shortest" if context < one.cell.context else "longest")
            ends[End(name, context, context in (planned[0], planned[-1]))] += 1
    return ends.most_common(1)[0][0] if ends else End("", 0)


def _not_bracketed(observed: Observations, unit: str) -> DataError:
    """The error for a sweep without any measured optimum."""
    ends = Counter(end for size in observed.sizes if (end := end_of(observed, size, unit)).name)
    if not ends:
        return DataError(
            f"no model size of the sweep was trained at three contexts with budgets ({unit}) in common, so that no optimum can "
            f"be seen; train the contexts of a size for about the same {unit}"
        )
    end = ends.most_common(1)[0][0]
    said = " ".join(observed.landscape(unit).findings())
    return DataError(
        f"at every budget ({unit}) the best context is at an end of the sweep's contexts (mostly the {end.name}, {end.context}"
        f"), so that the sweep does not bracket the optimal context; {end.advice}, or set --far to get a guess"
        f"{f' ({said})' if said else ''}"
    )


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
