"""An ensemble of laws by a wild bootstrap over whole runs.

The points of a run share its seed and its order of data, so their residuals are correlated and are kept together: in each
resample the residuals of a run are all multiplied by one random number of mean 0 and variance 1 (Webb's six values) and added
to the fitted losses again. Drawing runs with replacement instead would drop cells of a grid that has one run in each, and the
law with them.

A fit that has bent towards a run has residuals that are too small. They are widened by the run's leverage, (1 - H)^-1 in the
place of 1 - H (the cluster-robust correction CR3 of the econometrics of few clusters); without, intervals are too narrow.

Legend: R laws, G runs, P parameters, n points.
"""

import numpy as np
from numpy.typing import NDArray

from contextwise.analysis.scaling.fitting import HUBER, Data, refit
from contextwise.analysis.scaling.forms import Array, Form

RESAMPLES = 200
WEBB = np.array([-np.sqrt(1.5), -1.0, -np.sqrt(0.5), np.sqrt(0.5), 1.0, np.sqrt(1.5)])
SHRINKAGE = 0.1
"""Least share of itself that a residual is taken to have kept; a run that the law cannot do without would divide by zero."""


def widened_residuals(
    form: Form, theta: Array, data: Data, runs: NDArray[np.int64], power: float = 1.0
) -> Array:
    """Residuals ln L measured minus ln L fitted (n,), as they would be had each run not been fitted.

    Args:
        theta: (P,) the fit.
        runs: (n,) index of the run.
        power: of the correction; 1 for CR3, 1/2 for CR2.
    """
    loss, slopes = form.value_and_slope(theta[None], data.features)
    residual = data.log_loss - np.log(loss[0])
    jacobian = slopes[0] / loss[0][:, None]
    low, high = form.bounds
    jacobian = jacobian[:, (theta > low) & (theta < high)]
    weight = np.minimum(1.0, HUBER / np.maximum(np.abs(residual), 1e-300))
    root = np.sqrt(weight)
    whitened = jacobian * root[:, None]
    inverse = np.linalg.pinv(whitened.T @ whitened, hermitian=True)
    wide = np.empty_like(residual)
    for run in np.unique(runs):
        mine = runs == run
        leverage = whitened[mine] @ inverse @ whitened[mine].T
        values, vectors = np.linalg.eigh(leverage)
        factor = np.maximum(1 - values, SHRINKAGE) ** -power
        wide[mine] = vectors @ (factor * (vectors.T @ (residual[mine] * root[mine]))) / root[mine]
    return wide


def ensemble(
    form: Form,
    theta: Array,
    data: Data,
    runs: NDArray[np.int64],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Array:
    """(R, P): the law fitted to each resample.

    Args:
        theta: (S, P) the fit, and other minima that a resample may fall into.
        runs: (n,) index of the run.
    """
    draw = np.random.default_rng(seed)
    loss, _ = form.value_and_slope(theta[:1], data.features)
    wide = widened_residuals(form, theta[0], data, runs)
    signs = draw.choice(WEBB, size=(resamples, int(runs.max()) + 1))[:, runs]
    resampled = Data(data.features, np.log(loss) + signs * wide)
    return refit(form, resampled, np.ones((1, len(runs))), theta[:2])
