"""Entropy of features by a Gaussian kernel density, and their dimension by distances.

The density at a point is the mean of Gaussians about the other points, each with the covariance of the points times the square
of Scott's factor h (intrinsic entropy, Appendix C.2). The entropy is minus the mean logarithm of that density.

**Bias.** Of a Gaussian the estimate tends to a value that is (D / 2) [ln(1 + h²) − h² / (1 + h²)] too high. In many dimensions
no two points are near each other: if a point counts in its own density, as in the source, the estimate is
ln N + (D / 2) ln(2π h²) + ½ ln det Σ whatever the shape of the data, and *must* agree with the entropy from the eigenvalues.
If it does not (the default), the estimate is far too high. Read differences between contexts, not values.

Legend of shapes: N points, D channels, M leading directions.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from contextwise.settings import DataError
from contextwise_papers.intrinsic_entropy.fits import LineFit, fit_line
from contextwise_papers.intrinsic_entropy.spectra import SMALLEST

_PAIRS_AT_ONCE = 2**24
_LEAST_POINTS_PER_DIRECTION = 10
_LEAST_POINTS = 100


def scott_factor(points: int, dimensions: int) -> float:
    """Scott's bandwidth N^(-1/(D + 4)), in units of the standard deviation."""
    return float(points ** (-1 / (dimensions + 4)))


def kde_entropy(features_ND: Any, leave_one_out: bool = True) -> float:
    """Entropy in nats of the density that Gaussian kernels of Scott's bandwidth estimate from (N, D) points, N > D.

    ``leave_one_out``: whether a point is left out of its own density.
    """
    x_ND = _points(features_ND)
    points, dimensions = x_ND.shape
    h = scott_factor(points, dimensions)
    if points <= dimensions:
        raise DataError(
            f"a kernel density over {dimensions} dimensions needs more than {dimensions} points, and there are {points}; "
            "give more samples, or fewer leading directions"
        )
    centred_ND = x_ND - x_ND.mean(0)
    values_D, vectors_DD = torch.linalg.eigh(centred_ND.mT @ centred_ND / (points - 1))
    if not values_D[-1] > 0 or values_D[0] <= SMALLEST * values_D[-1]:
        raise DataError(
            f"the points span fewer than their {dimensions} dimensions, so a density over all of those does not exist; "
            "estimate it over leading directions"
        )
    white_ND = centred_ND @ vectors_DD / (values_D.sqrt() * h)
    log_sums_N = _log_kernel_sums(white_ND, leave_one_out)
    # Normalisation of a kernel: (2π)^(D/2) h^D sqrt(det Σ).
    log_volume = dimensions * (0.5 * math.log(2 * math.pi) + math.log(h)) + 0.5 * float(values_D.log().sum())
    return math.log(points - leave_one_out) + log_volume - float(log_sums_N.mean())


def _log_kernel_sums(white_ND: torch.Tensor, leave_one_out: bool) -> torch.Tensor:
    """ln Σ_j exp(−|x_i − x_j|² / 2) for every i, (N,)."""
    squares_N = white_ND.square().sum(1)
    rows = max(1, _PAIRS_AT_ONCE // len(white_ND))
    sums = []
    for start in range(0, len(white_ND), rows):
        part = white_ND[start : start + rows]
        exponents = part @ white_ND.mT - 0.5 * (squares_N + squares_N[start : start + rows, None])
        own = torch.arange(len(part))
        exponents[own, own + start] = -math.inf if leave_one_out else 0.0
        sums.append(exponents.logsumexp(1))
    return torch.cat(sums)


def leading_directions(features_ND: Any, directions: int) -> torch.Tensor:
    """The points in the coordinates of their leading principal directions: (N, M) float64."""
    x_ND = _points(features_ND)
    centred_ND = x_ND - x_ND.mean(0)
    _, vectors_DD = torch.linalg.eigh(centred_ND.mT @ centred_ND)
    return centred_ND @ vectors_DD.flip(1)[:, :directions]


def density_directions(points: int, dimensions: int) -> int:
    """Number of leading directions to estimate a density over: all, but at most one for every ten points."""
    return max(1, min(dimensions, points // _LEAST_POINTS_PER_DIRECTION))


def _points(features_ND: Any) -> torch.Tensor:
    x_ND = torch.as_tensor(features_ND).to(torch.float64)
    if x_ND.dim() != 2 or len(x_ND) < 2:
        raise DataError(f"points must be rows of a matrix, two or more of them, not of shape {tuple(x_ND.shape)}")
    if not torch.isfinite(x_ND).all():
        raise DataError("a point is not finite (NaN or infinity); measure the features again, in float32")
    return x_ND


def nearest_distances(features_ND: Any, most: int = 2000) -> dict[int, float]:
    """Mean distance to the nearest neighbour within parts of n points, by n: all points, and halves, quarters, … of them.

    The distance of intrinsic entropy, Theorem 1 (Appendix D.2), whose cap no finite sample reaches. Of the first ``most``
    points (N, D), without copies of a point and points as near to one as float32 resolves; a DataError for fewer than 100.
    """
    x_ND = torch.unique(_points(features_ND)[:most], dim=0)
    resolution = torch.finfo(torch.float32).eps * x_ND.norm(dim=1).max()  # features are measured in float32
    x_ND = x_ND - x_ND.mean(0)  # cdist loses distances that are short beside the norms
    distances_NN = torch.cdist(x_ND, x_ND)
    distances_NN = torch.maximum(distances_NN, distances_NN.mT)  # equal up to rounding
    different = (~(distances_NN < resolution).tril(-1).any(1)).nonzero()[:, 0]
    if len(different) < _LEAST_POINTS:
        raise DataError(
            f"dimensions by distances need {_LEAST_POINTS} different points, and there are {len(different)}"
        )
    order = different[torch.randperm(len(different), generator=torch.Generator().manual_seed(0))]
    distances_NN = distances_NN[order][:, order].fill_diagonal_(math.inf)
    mean: dict[int, float] = {}
    for halvings in range(5):
        count = len(distances_NN) >> halvings
        # All disjoint parts of the points, so that every D has as many distances.
        parts = [slice(i * count, (i + 1) * count) for i in range(1 << halvings)]
        mean[count] = float(torch.cat([distances_NN[part, part].amin(1) for part in parts]).mean())
    return mean


def distance_line(distances: Mapping[int, float]) -> LineFit:
    """ln of the mean nearest distance over ln D; its slope is -1/d where the density is bounded from below (Eq. 17)."""
    logs = {count: math.log(distance) for count, distance in distances.items()}
    return fit_line({count: math.log(count) for count in distances}, logs)
