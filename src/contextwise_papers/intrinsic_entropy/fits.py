"""Fits over context lengths: a power law, straight lines, correlations. Values are joined by context, never by position.

Legend: l is a context length in tokens; losses and entropies are in nats. Intervals are 95%: the estimate's standard error from
the scatter of the points about the fit, times Student's t. They take the form of the fit for true and the points for
independent; losses of the same targets at neighbouring contexts are not quite that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from contextwise.settings import ConfigError
from contextwise.stats import Estimate, plus_minus, student_t

LARGEST_EXPONENT, SMALLEST_EXPONENT = 20.0, 1e-3


@dataclass(frozen=True)
class PowerFit:
    """CE ≈ C0 + C / l^γ (intrinsic entropy, Eq. 3): C0 is the floor, C the scale, γ the exponent."""

    floor: Estimate
    scale: Estimate
    exponent: Estimate
    r_squared: float
    contexts: tuple[int, ...]

    def at(self, contexts: np.ndarray) -> np.ndarray:
        """The fitted loss."""
        lengths = np.asarray(contexts, dtype=np.float64)
        return self.floor.value + self.scale.value * lengths**-self.exponent.value


@dataclass(frozen=True)
class LineFit:
    """y ≈ slope · x + intercept, with Pearson's correlation."""

    slope: Estimate
    intercept: Estimate
    r_squared: float
    correlation: float
    contexts: tuple[int, ...]


def fit_power(losses: Mapping[int, float]) -> PowerFit:
    """Least squares of C0 + C / l^γ through losses of four contexts or more; a ConfigError where no power law has its optimum.

    For a given γ the fit is linear, so only γ is searched for, and the result does not depend on a starting point.
    """
    contexts = tuple(sorted(losses))
    if len(contexts) < 4:
        raise ConfigError(
            f"a power law has three parameters and needs four contexts or more to be fitted, and there are {len(contexts)}"
        )
    # In units of the shortest context the power stays near one, whatever the exponent.
    lengths = np.array(contexts, float) / contexts[0]
    y = np.array([losses[context] for context in contexts], float)

    def linear(exponent: float) -> tuple[np.ndarray, float]:
        design = np.stack([np.ones_like(lengths), lengths**-exponent], 1)
        coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
        return coefficients, float(((y - design @ coefficients) ** 2).sum())

    low, high = np.log(SMALLEST_EXPONENT), np.log(LARGEST_EXPONENT)
    grid = np.linspace(low, high, 200)
    best = int(np.argmin([linear(float(np.exp(value)))[1] for value in grid]))
    flat = np.ptp(y) == 0
    if flat or best in (0, len(grid) - 1):
        why = "they are all the same" if flat else "they do not level off as the context grows"
        raise ConfigError(f"no power law fits the losses: {why}; measure at more contexts, or longer ones")
    result = optimize.minimize_scalar(
        lambda value: linear(float(np.exp(value)))[1],
        bounds=(grid[best - 1], grid[best + 1]),
        method="bounded",
        options={"xatol": 1e-12},
    )
    exponent = float(np.exp(result.x))
    (floor, scaled), squares = linear(exponent)
    power = lengths**-exponent
    jacobian = np.stack([np.ones_like(lengths), power, -scaled * np.log(lengths) * power], 1)
    covariance, change = _covariance(jacobian, squares), contexts[0] ** exponent
    errors = np.sqrt(np.diag(covariance))
    # scale = scaled · shortest^γ: its error includes that of the exponent.
    gradient = np.array([0.0, change, scaled * change * np.log(contexts[0])])
    scale_error = float(np.sqrt(gradient @ covariance @ gradient))
    freedom = len(y) - 3
    t = student_t(freedom)
    return PowerFit(
        plus_minus(floor, errors[0] * t, freedom=freedom),
        plus_minus(scaled * change, scale_error * t, freedom=freedom),
        plus_minus(exponent, errors[2] * t, freedom=freedom),
        _r_squared(y, squares),
        contexts,
    )


def fit_line(x: Mapping[int, float], y: Mapping[int, float]) -> LineFit:
    """Least squares of a straight line through the points of the contexts that both have: three or more, else a ConfigError."""
    contexts = tuple(sorted(x.keys() & y.keys()))
    xs, ys = (np.array([values[context] for context in contexts], float) for values in (x, y))
    if len(contexts) < 3:
        raise ConfigError(
            f"a straight line has two parameters and needs three contexts or more to be fitted, and there are {len(contexts)}"
        )
    if np.ptp(xs) <= 1e-12 * np.abs(xs).max():  # rounding at most
        raise ConfigError(f"no line can be fitted: x is {xs[0]:g} at every context")
    design = np.stack([xs - xs.mean(), np.ones_like(xs)], 1)
    slope, middle = np.linalg.lstsq(design, ys, rcond=None)[0]
    squares = float(((ys - design @ np.array([slope, middle])) ** 2).sum())
    freedom = len(ys) - 2
    errors, t = np.sqrt(np.diag(_covariance(design, squares))), student_t(freedom)
    at_zero = float(np.hypot(errors[1], errors[0] * xs.mean()))
    correlation = float(np.corrcoef(xs, ys)[0, 1]) if np.ptp(ys) > 0 else 0.0
    intercept = plus_minus(float(middle - slope * xs.mean()), at_zero * t, freedom=freedom)
    return LineFit(
        plus_minus(float(slope), errors[0] * t, freedom=freedom),
        intercept,
        _r_squared(ys, squares),
        correlation,
        contexts,
    )


def correlations(series: Mapping[str, Mapping[int, float]]) -> tuple[list[str], np.ndarray]:
    """Names of the series that vary, and Pearson's correlations of these over the contexts that all have, three or more."""
    contexts = sorted(set.intersection(*(set(values) for values in series.values()))) if series else []
    if len(contexts) < 3:
        raise ConfigError(f"correlations need three contexts or more, and there are {len(contexts)}")
    rows = {name: np.array([values[c] for c in contexts], float) for name, values in series.items()}
    varying = [name for name, row in rows.items() if np.ptp(row) > 0]
    if not varying:
        return [], np.zeros((0, 0))
    return varying, np.atleast_2d(np.corrcoef(np.stack([rows[name] for name in varying])))


def _covariance(jacobian: np.ndarray, squares: float) -> np.ndarray:
    points, parameters = jacobian.shape
    return np.linalg.pinv(jacobian.T @ jacobian) * squares / (points - parameters)


def _r_squared(y: np.ndarray, squares: float) -> float:
    total = float(((y - y.mean()) ** 2).sum())
    return 1 - squares / total if total > 0 else 0.0
