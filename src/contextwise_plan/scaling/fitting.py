"""Fitting a form: Huber loss on the logarithm of the loss, *summed* over points, from many starts; and its uncertainty.

All fits of one kind are solved side by side by one Levenberg-Marquardt iteration inside bounds: a Huber loss is a least-squares
loss whose weights are renewed at every step. The uncertainty comes from a wild bootstrap over whole runs (docs/plan.md): the
residuals of a run are multiplied by one random number (Webb's six values), and widened by its leverage, (1 - H)^-1 in the place
of 1 - H (CR3).

Legend: R fits side by side, G runs, P parameters, n points.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from contextwise_plan.scaling.forms import Array, Form

HUBER = 0.01  # residuals of ln L beyond this (1% of the loss) count linearly
STARTS = 24  # starts that are followed to their end
ITERATIONS = 300
TOLERANCE = 1e-9
RESAMPLES = 200
WEBB = np.array([-np.sqrt(1.5), -1.0, -np.sqrt(0.5), np.sqrt(0.5), 1.0, np.sqrt(1.5)])
SHRINKAGE = 0.1
"""Least share of itself that a residual is taken to have kept; a run that the law cannot do without would divide by zero."""


@dataclass(frozen=True)
class Data:
    """What is fitted: features, name -> (n,), and ``log_loss``, (n,), or (R, n) where each fit has its own."""

    features: dict[str, Array]
    log_loss: Array


def search(form: Form, data: Data) -> Array:
    """The best parameters (P,), and with them the other minima that many starts lead to: (R, P), the best first."""
    starts = _starts(form, data)
    theta, value = minimise(form, data, np.ones((1, len(data.log_loss))), starts)
    order = np.argsort(value)
    kept = [order[0]]
    for i in order[1:]:
        if all(np.abs(theta[i] - theta[j]).max() > 0.05 for j in kept) and len(kept) < 4:
            kept.append(i)
    return theta[kept]


def refit(form: Form, data: Data, weights: Array, starts: Array) -> Array:
    """Fits (R, P) of other ``weights``, (R, n) or (1, n), or other losses, each the best from several ``starts`` (S, P)."""
    log_loss = np.atleast_2d(data.log_loss)
    fits, count = max(len(weights), len(log_loss)), len(starts)
    points = log_loss.shape[1]
    weights, log_loss = (np.tile(np.broadcast_to(x, (fits, points)), (count, 1)) for x in (weights, log_loss))
    theta, value = minimise(form, Data(data.features, log_loss), weights, np.repeat(starts, fits, axis=0))
    best = value.reshape(count, fits).argmin(0)
    return theta.reshape(count, fits, -1)[best, np.arange(fits)]


def minimise(form: Form, data: Data, weights: Array, theta: Array) -> tuple[Array, Array]:
    """Levenberg-Marquardt inside the form's bounds: (R, P) parameters from the starts ``theta``, and (R,) their Huber losses.

    ``weights``, (R, n) or (1, n), are those of the points in the sum.
    """
    low, high = form.bounds
    theta = np.clip(theta, low, high)
    shape = len(theta), data.log_loss.shape[-1]
    target, weights = np.broadcast_to(data.log_loss, shape), np.broadcast_to(weights, shape)
    value, gradient, hessian = _around(form, data, theta, target, weights)
    damping = np.full(len(theta), 1e-2)
    calm = np.zeros(len(theta), dtype=int)
    active = np.arange(len(theta))
    for _ in range(ITERATIONS):
        current = theta[active]
        step = _inside(current, gradient[active], hessian[active], damping[active], low, high)
        proposed = np.clip(current + step, low, high)
        new, slope, curve = _around(form, data, proposed, target[active], weights[active])
        better = new <= value[active]
        gain = np.where(better, value[active] - new, 0.0)
        settled = (gain <= TOLERANCE * (value[active] + 1e-12)) & (better | (damping[active] > 1e8))
        calm[active] = np.where(settled, calm[active] + 1, 0)
        damping[active] = np.clip(np.where(better, damping[active] * 0.2, damping[active] * 8), 1e-9, 1e12)
        moved = active[better]
        theta[moved], value[moved] = proposed[better], new[better]
        gradient[moved], hessian[moved] = slope[better], curve[better]
        active = active[calm[active] < 2]
        if not len(active):
            break
    return theta, value


def _around(form: Form, data: Data, theta: Array, target: Array, weights: Array) -> tuple[Array, ...]:
    """Summed Huber losses (R,), their gradients (R, P), and the Hessians of the weighted squares (R, P, P)."""
    loss, slopes = form.value_and_slope(theta, data.features)
    residual = np.log(loss) - target
    slopes /= loss[:, :, None]
    curve = weights * _huber_weight(residual)
    weighted = (slopes * curve[:, :, None]).transpose(0, 2, 1)
    gradient = (weighted @ residual[:, :, None])[:, :, 0]
    return (weights * huber(residual)).sum(1), gradient, weighted @ slopes


def huber(residual: Array) -> Array:
    """r²/2 up to :data:`HUBER`, linear beyond."""
    size = np.abs(residual)
    return np.asarray(np.where(size <= HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER)), dtype=np.float64)


def _huber_weight(residual: Array) -> Array:
    """Weights of the least-squares loss with the gradient of the Huber loss."""
    return np.asarray(np.minimum(1.0, HUBER / np.maximum(np.abs(residual), 1e-300)), dtype=np.float64)


def _inside(theta: Array, gradient: Array, hessian: Array, damping: Array, low: Array, high: Array) -> Array:
    """The damped step; parameters that a bound holds stay."""
    held = ((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0))
    free = (~held).astype(np.float64)
    gradient = gradient * free
    hessian = hessian * free[:, :, None] * free[:, None, :]
    diagonal = np.einsum("rpp->rp", hessian)
    scale = np.maximum(diagonal, 1e-12 * np.maximum(diagonal.max(1, keepdims=True), 1e-30))
    added = damping[:, None] * scale + held
    hessian = hessian + added[:, :, None] * np.eye(theta.shape[1])
    step = np.linalg.solve(hessian, -gradient[:, :, None])[:, :, 0]
    return np.asarray(step, dtype=np.float64)


def _starts(form: Form, data: Data) -> Array:
    """(S, P): a grid over the powers, where each point's scales are the non-negative least-squares ones; the best of them."""
    loss = np.exp(data.log_loss)
    rest = [parameter for parameter in form.parameters if parameter.feature != "1"]
    rated = []
    for powers in itertools.product(*(parameter.starts for parameter in rest)):
        given = iter(powers)
        parts, columns = [], []
        for term in form.terms:
            parts.append([next(given) for _ in term[1:]])
            exponent = np.zeros_like(loss)
            for power, parameter in zip(parts[-1], term[1:], strict=True):
                exponent = exponent + power * data.features[parameter.feature]
            columns.append(np.exp(exponent) / loss)
        scales, misfit = nnls(np.stack(columns, axis=-1), np.ones_like(loss))
        floor = 0.02 * loss.mean()
        theta = [x for scale, part in zip(scales, parts, strict=True) for x in (np.log(max(scale, floor)), *part)]
        rated.append((misfit, theta))
    rated.sort(key=lambda pair: pair[0])
    return np.array([theta for _, theta in rated[:STARTS]])


def widened_residuals(form: Form, theta: Array, data: Data, runs: NDArray[np.int64]) -> Array:
    """Residuals ln L measured minus ln L fitted (n,) at ``theta`` (P,), as they would be had each run not been fitted."""
    loss, slopes = form.value_and_slope(theta[None], data.features)
    residual = data.log_loss - np.log(loss[0])
    jacobian = slopes[0] / loss[0][:, None]
    low, high = form.bounds
    jacobian = jacobian[:, (theta > low) & (theta < high)]
    root = np.sqrt(_huber_weight(residual))
    whitened = jacobian * root[:, None]
    inverse = np.linalg.pinv(whitened.T @ whitened, hermitian=True)
    wide = np.empty_like(residual)
    for run in np.unique(runs):
        mine = runs == run
        leverage = whitened[mine] @ inverse @ whitened[mine].T
        values, vectors = np.linalg.eigh(leverage)
        factor = 1 / np.maximum(1 - values, SHRINKAGE)
        wide[mine] = vectors @ (factor * (vectors.T @ (residual[mine] * root[mine]))) / root[mine]
    return wide


def ensemble(
    form: Form, theta: Array, data: Data, runs: NDArray[np.int64], resamples: int = RESAMPLES, seed: int = 0
) -> Array:
    """(R, P): the law fitted to each resample; ``theta`` (S, P): the fit, and other minima that a resample may fall into."""
    loss, _ = form.value_and_slope(theta[:1], data.features)
    wide = widened_residuals(form, theta[0], data, runs)
    signs = np.random.default_rng(seed).choice(WEBB, size=(resamples, int(runs.max()) + 1))[:, runs]
    resampled = Data(data.features, np.log(loss) + signs * wide)
    return refit(form, resampled, np.ones((1, len(runs))), theta[:2])
