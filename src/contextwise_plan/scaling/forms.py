"""The parametric losses: sums of power laws in training context l, parameters N and training tokens D.

Every form is a constant E and terms exp(θ · features), where the features are 1, ln l, ln N, ln D and ln l · ln D, each
logarithm taken relative to the middle of the data. That covers Eq. 5 of intrinsic entropy,

    L(l, D) = C0 + C / l^γ + A(l) / D^α(l)        with    A(l) = a l^b    and    α(l) = α - δ ln l

(b = δ = 0; then b free, or δ ≥ 0, which is Eq. 4 alone; then both free), and its extension by B / N^β over model sizes.
Values and derivatives of all forms come from the same few lines.

Legend: R laws side by side (an ensemble), P parameters of a form, n points.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

SHARE = (np.log(1e-7), np.log(1e3))  # bounds of the logarithm of a term in the middle of the data, nats
FALL = (-3.0, -0.02)  # bounds of the power of a variable that lowers the loss


@dataclass(frozen=True)
class Parameter:
    """A parameter of a term: the feature that it multiplies, its name, and the bounds of its search."""

    feature: str
    name: str
    bounds: tuple[float, float]
    starts: tuple[float, ...]
    """Values that a search begins from."""
    sign: float = 1.0
    """The printed value is ``sign`` times the fitted one: 1/D^α is fitted as the power -α."""


FLOOR = (Parameter("1", "E", (np.log(1e-4), np.log(1e3)), (0.0,)),)
CONTEXT = (Parameter("1", "C", SHARE, (0.0,)), Parameter("l", "gamma", FALL, (-0.3, -0.9), -1.0))
SIZE = (Parameter("1", "B", SHARE, (0.0,)), Parameter("N", "beta", FALL, (-0.2, -0.6), -1.0))
DATA = (Parameter("1", "A", SHARE, (0.0,)), Parameter("D", "alpha", FALL, (-0.15, -0.4, -0.9), -1.0))
HARDER = Parameter("l", "b", (-2.0, 2.0), (0.0, 0.4))
SLOWER = Parameter("lD", "delta", (-0.3, 0.3), (0.0,))
FALLING = Parameter("lT", "delta", (0.0, 0.3), (0.01,))
"""Eq. 4, ∂α/∂l ≤ 0, with A constant: its feature is ln l · ln D with D in tokens, so that all contexts meet at D = 1."""
NARROW = Parameter("l", "c", (-2.0, 2.0), (0.0,))
FASTER = Parameter("N", "n", (-2.0, 2.0), (0.0,))


@dataclass(frozen=True)
class Form:
    """A parametric loss: its formula, and the parameters of each term, the scale first."""

    name: str
    formula: str
    terms: tuple[tuple[Parameter, ...], ...]

    @property
    def parameters(self) -> list[Parameter]:
        """All of them, in the order of θ."""
        return [parameter for term in self.terms for parameter in term]

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds of θ, (P,) each."""
        low, high = zip(*(parameter.bounds for parameter in self.parameters), strict=True)
        return np.array(low, dtype=np.float64), np.array(high, dtype=np.float64)

    @property
    def sees_context(self) -> bool:
        """Whether the loss depends on the training context."""
        return any("l" in parameter.feature for parameter in self.parameters)

    def value_and_slope(self, theta: Array, features: dict[str, Array]) -> tuple[Array, Array]:
        """Losses (R, n) in nats at ``theta`` (R, P) and features name -> (n,), and their derivatives (R, n, P)."""
        slopes = np.empty((len(theta), len(features["1"]), theta.shape[1]))
        value = np.zeros(slopes.shape[:2])
        first = 0
        for term in self.terms:
            design = np.stack([features[parameter.feature] for parameter in term], axis=-1)
            last = first + len(term)
            part = np.exp(theta[:, first:last] @ design.T)
            value += part
            slopes[:, :, first:last] = part[:, :, None] * design
            first = last
        return value, slopes


ONE_SIZE = (
    Form("constant", "E", (FLOOR,)),
    Form("data alone", "E + A/D^α", (FLOOR, DATA)),
    Form("separate", "E + C/l^γ + A/D^α", (FLOOR, CONTEXT, DATA)),
    Form("harder", "E + C/l^γ + A·l^b/D^α", (FLOOR, CONTEXT, (*DATA, HARDER))),
    Form("falling", "E + C/l^γ + A/D^(α-δ·ln l)", (FLOOR, CONTEXT, (*DATA, FALLING))),
    Form("slower", "E + C/l^γ + A·l^b/D^(α-δ·ln l)", (FLOOR, CONTEXT, (*DATA, HARDER, SLOWER))),
)
"""For one model size, the simplest first; the last four are Eq. 5 of intrinsic entropy."""

DATA_AND_SIZE = Form("data and size", "E + B/N^β + A/D^α", (FLOOR, SIZE, DATA))

SEVERAL_SIZES = (
    Form("constant", "E", (FLOOR,)),
    DATA_AND_SIZE,
    Form("separate", "E + C/l^γ + B/N^β + A/D^α", (FLOOR, CONTEXT, SIZE, DATA)),
    Form("harder", "E + C/l^γ + B/N^β + A·l^b/D^α", (FLOOR, CONTEXT, SIZE, (*DATA, HARDER))),
    Form("falling", "E + C/l^γ + B/N^β + A/D^(α-δ·ln l)", (FLOOR, CONTEXT, SIZE, (*DATA, FALLING))),
    Form("slower", "E + C/l^γ + B/N^β + A·l^b/D^(α-δ·ln l)", (FLOOR, CONTEXT, SIZE, (*DATA, HARDER, SLOWER))),
    Form("narrow", "E + C/l^γ + B·l^c/N^β + A·l^b/D^α", (FLOOR, CONTEXT, (*SIZE, NARROW), (*DATA, HARDER))),
    Form("faster", "E + C/l^γ + B/N^β + A·l^b·N^n/D^α", (FLOOR, CONTEXT, SIZE, (*DATA, HARDER, FASTER))),
)
"""Over model sizes: the same, with a term for the size that may interact with the context or with the data."""

EVERY = Form("every", "", (FLOOR, CONTEXT, (*SIZE, NARROW), (*DATA, HARDER, SLOWER, FALLING, FASTER)))
# Contains all the others, so that laws of several forms can be in one ensemble.
ABSENT = -300.0  # logarithm of the scale of a term that a form does not have


def widened(form: Form, theta: Array) -> Array:
    """Laws (R, P) of a form as laws of :data:`EVERY`."""
    given = {
        (term[0].name, parameter.feature): column
        for term, first in zip(form.terms, np.cumsum([0, *map(len, form.terms)]), strict=False)
        for parameter, column in zip(term, theta.T[first : first + len(term)], strict=True)
    }
    columns = [
        given.get((term[0].name, parameter.feature), np.full(len(theta), ABSENT if parameter is term[0] else 0.0))
        for term in EVERY.terms
        for parameter in term
    ]
    return np.stack(columns, axis=1)


def features_of(centre: Array, context: ArrayLike, parameters: ArrayLike, tokens: ArrayLike) -> dict[str, Array]:
    """The features of points, relative to the middle of the data (3,): name -> an array of the points' common shape."""
    points = np.broadcast_arrays(context, parameters, tokens)
    log_l, log_N, log_D = (np.log(x) - middle for x, middle in zip(points, centre, strict=True))
    crossed = {"lD": log_l * log_D, "lT": log_l * (log_D + centre[2])}
    return {"1": np.ones_like(log_l), "l": log_l, "N": log_N, "D": log_D, **crossed}


@dataclass(frozen=True)
class Law:
    """A form with its parameters (P,), or an ensemble of such laws (R, P); logarithms are relative to ``centre`` (3,)."""

    form: Form
    theta: Array
    centre: Array

    def loss(self, context: ArrayLike, parameters: ArrayLike, tokens: ArrayLike) -> Array:
        """Best-context loss, nats per token, in the common shape of the arguments.

        For an ensemble the first axis of that shape is R or 1, and the loss is (R, ...).
        """
        features = features_of(self.centre, context, parameters, tokens)
        total: Array = np.zeros(1)
        columns = iter(np.moveaxis(self.theta, -1, 0))
        for term in self.form.terms:
            exponent: Array = np.zeros(1)
            for parameter in term:
                feature = features[parameter.feature]
                column = next(columns)
                if self.theta.ndim == 2:
                    column = column.reshape(-1, *[1] * (feature.ndim - 1))
                exponent = exponent + column * feature
            total = total + np.exp(exponent)
        return total

    def printed(self) -> dict[str, Array]:
        """The parameters as the formula has them: name -> () or (R,).

        A scale is that of the formula in plain l, N and D; δ's share of b and α is counted back to l = 1 and D = 1 token.
        """
        middle = dict(zip("lND", self.centre, strict=True))
        values: dict[str, Array] = {}
        columns = iter(np.moveaxis(self.theta, -1, 0))
        for term in self.form.terms:
            powers = {parameter.feature: (parameter, next(columns)) for parameter in term}
            cross, falling = (powers.get(name, (None, np.zeros(1)[0]))[1] for name in ("lD", "lT"))
            scale, shift = powers["1"][1], cross * middle["l"] * middle["D"]
            for feature, (parameter, value) in powers.items():
                if feature == "1":
                    continue
                if feature not in ("lD", "lT"):
                    shift = shift - value * middle[feature]
                    value = value - cross * {"l": middle["D"], "D": middle["l"], "N": 0.0}[feature]
                    value = value - falling * {"l": 0.0, "D": middle["l"], "N": 0.0}[feature]
                values[parameter.name] = parameter.sign * value
            values[powers["1"][0].name] = np.exp(scale + shift)
        return {parameter.name: values[parameter.name] for parameter in self.form.parameters}
