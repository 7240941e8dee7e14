"""Cost of a training token, in FLOPs or in measured seconds, as a function of model size and context.

Each size's cost is linear in the context (weights, and attention over full rows), through the costs that the sweep's points
measured; between sizes the two coefficients are power laws of the parameters, extrapolated beyond the first and the last size.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from contextwise.analysis.scaling.forms import Array
from contextwise.analysis.scaling.observations import Observations
from contextwise.base.errors import DataError


@dataclass(frozen=True)
class Cost:
    """Cost of a training token.

    Attributes:
        unit: ``flops`` or ``seconds``.
        sizes: (S,) parameters, ascending.
        base, slope: (S,) cost of a token without attention, and for a token of context.
    """

    unit: str
    sizes: Array
    base: Array
    slope: Array

    def per_token(self, parameters: ArrayLike, context: ArrayLike) -> Array:
        """Cost of a token; shapes broadcast."""
        log_n = np.log(np.asarray(parameters, dtype=np.float64))
        return np.exp(self._between(log_n, self.base)) + np.exp(
            self._between(log_n, self.slope)
        ) * np.asarray(context, dtype=np.float64)

    def _between(self, log_n: Array, values: Array) -> Array:
        """ln of a coefficient: linear in ln N between the sizes, extrapolated beyond."""
        x, y = np.log(self.sizes), np.log(values)
        if len(x) == 1:
            return np.full_like(log_n, y[0])
        piece = np.clip(np.searchsorted(x, log_n) - 1, 0, len(x) - 2)
        share = (log_n - x[piece]) / (x[piece + 1] - x[piece])
        return y[piece] + share * (y[piece + 1] - y[piece])


def measured_cost(observed: Observations, unit: str) -> Cost:
    """Costs from the points: what a run spent, divided by its tokens, at its last point.

    Raises:
        DataError: a point cost nothing.
    """
    if not (getattr(observed, unit) > 0).all():
        raise DataError(
            f"the sweep measured points at which no {unit} had been spent; its metrics are damaged"
        )
    base, slope = [], []
    for size in range(len(observed.sizes)):
        context, cost = [], []
        for run in np.unique(observed.run[observed.size == size]):
            mine = np.flatnonzero(observed.run == run)
            last = mine[observed.tokens[mine].argmax()]
            context.append(observed.context[last])
            cost.append(getattr(observed, unit)[last] / observed.tokens[last])
        level, rise = _line(np.array(context), np.array(cost))
        base.append(level)
        slope.append(rise)
    return Cost(unit, observed.size_parameters, np.array(base), np.array(slope))


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
