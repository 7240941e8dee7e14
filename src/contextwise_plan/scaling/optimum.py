"""The minimum of a law at a budget, over model size and context; tokens follow from the budget and the cost of a token.

Each size's measured cost of a token is linear in the context (weights, and attention over full rows); between sizes and beyond
them the two coefficients are power laws of the parameters. The minimum is that of a grid over size and context, then of smaller
grids around each law's own best point; all laws of an ensemble at once.

Legend: R laws side by side, K sizes, M contexts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from contextwise.settings import DataError
from contextwise_plan.scaling.forms import Array, Law
from contextwise_plan.scaling.observations import Observations

COARSE, FINE, ZOOMS = 49, 9, 8


@dataclass(frozen=True)
class Cost:
    """Cost of a training token."""

    sizes: Array  # (S,) parameters, ascending
    base: Array  # (S,) cost of a token without attention
    slope: Array  # (S,) and for a token of context

    def per_token(self, parameters: ArrayLike, context: ArrayLike) -> Array:
        """Cost of a token; shapes broadcast."""
        log_n, context = np.log(np.asarray(parameters, dtype=np.float64)), np.asarray(context, dtype=np.float64)
        return np.exp(self._between(log_n, self.base)) + np.exp(self._between(log_n, self.slope)) * context

    def _between(self, log_n: Array, values: Array) -> Array:
        """ln of a coefficient: linear in ln N between the sizes, extrapolated beyond."""
        x, y = np.log(self.sizes), np.log(values)
        if len(x) == 1:
            return np.full_like(log_n, y[0])
        piece = np.clip(np.searchsorted(x, log_n) - 1, 0, len(x) - 2)
        share = (log_n - x[piece]) / (x[piece + 1] - x[piece])
        return y[piece] + share * (y[piece + 1] - y[piece])


def measured_cost(observed: Observations, unit: str) -> Cost:
    """Costs from the points: what a run spent (``flops`` or ``seconds``), divided by its tokens, at its last point."""
    if not (getattr(observed, unit) > 0).all():
        raise DataError(f"the sweep measured points at which no {unit} had been spent; its metrics are damaged")
    lines = []
    for size in range(len(observed.sizes)):
        context, cost = [], []
        for run in np.unique(observed.run[observed.size == size]):
            mine = np.flatnonzero(observed.run == run)
            last = mine[observed.tokens[mine].argmax()]
            context.append(observed.context[last])
            cost.append(getattr(observed, unit)[last] / observed.tokens[last])
        lines.append(_line(np.array(context), np.array(cost)))
    return Cost(observed.size_parameters, *np.array(lines).T)


def _line(context: Array, cost: Array) -> tuple[float, float]:
    """Level and rise of a line through measured costs, by relative squares; neither falls below a small positive share."""
    weights = 1 / cost
    if len(np.unique(context)) < 2:
        return float(cost.mean()), float(cost.mean() * 1e-9)
    design = np.stack([np.ones_like(context), context], axis=1) * weights[:, None]
    (level, rise), *_ = np.linalg.lstsq(design, np.ones_like(cost), rcond=None)
    smallest = cost.min()
    if rise <= 0:
        return float(1 / weights.mean()), float(smallest * 1e-9)
    return max(float(level), float(smallest) * 1e-3), float(rise)


@dataclass(frozen=True)
class Optimum:
    """The best points of R laws, each (R,): parameters, context, tokens, and the loss there in nats."""

    parameters: Array
    context: Array
    tokens: Array
    loss: Array


def best_context(law: Law, cost: Cost, budget: float, parameters: float, contexts: tuple[float, float]) -> Optimum:
    """The best context of one model size."""
    return best_anywhere(law, cost, budget, (parameters, parameters), contexts)


def best_of_sizes(law: Law, cost: Cost, budget: float, sizes: Array, contexts: tuple[float, float]) -> Optimum:
    """The best context with the best of some sizes (K,)."""
    optima = [vars(best_context(law, cost, budget, float(size), contexts)) for size in sizes]
    best = np.stack([optimum["loss"] for optimum in optima]).argmin(0)
    laws = np.arange(len(best))
    return Optimum(**{name: np.stack([optimum[name] for optimum in optima])[best, laws] for name in optima[0]})


def best_anywhere(
    law: Law, cost: Cost, budget: float, sizes: tuple[float, float], contexts: tuple[float, float]
) -> Optimum:
    """The best context and size, between bounds."""
    if law.theta.ndim == 1:
        law = Law(law.form, law.theta[None], law.centre)
    laws = np.arange(len(law.theta))
    bounds = [np.log(sizes), np.log(contexts)]
    middle = [np.full(len(laws), span.mean()) for span in bounds]
    half = [np.ptp(span) / 2 for span in bounds]
    count = COARSE
    for _ in range(ZOOMS):
        log_n, log_l = (
            np.clip(m[:, None] + h * np.linspace(-1, 1, count if h else 1)[None] * (h > 0), *span)
            for m, h, span in zip(middle, half, bounds, strict=True)
        )
        if count == COARSE:  # the same grid for all
            log_n, log_l = log_n[:1], log_l[:1]
        n, l = np.exp(log_n)[:, :, None], np.exp(log_l)[:, None, :]  # noqa: E741
        tokens = budget / cost.per_token(n, l)
        loss = law.loss(l, n, tokens)  # (R, K, M)
        best = loss.reshape(len(laws), -1).argmin(1)
        row, column = np.unravel_index(best, loss.shape[1:])
        middle = [
            np.broadcast_to(log_n, (len(laws), log_n.shape[1]))[laws, row],
            np.broadcast_to(log_l, (len(laws), log_l.shape[1]))[laws, column],
        ]
        half = [1.5 * 2 * h / (count - 1) for h in half]
        count = FINE
    n, l = np.exp(middle[0]), np.exp(middle[1])  # noqa: E741
    tokens = budget / cost.per_token(n, l)
    lowest = law.loss(l[:, None], n[:, None], tokens[:, None])[:, 0]
    return Optimum(n, l, tokens, lowest)
