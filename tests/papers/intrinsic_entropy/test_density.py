"""Kernel densities of Gaussians, whose entropy and whose bias are known; and against scipy."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from contextwise.base.errors import DataError
from contextwise_papers.intrinsic_entropy import density
from contextwise_papers.intrinsic_entropy.density import (
    density_directions,
    distance_line,
    kde_entropy,
    leading_directions,
    nearest_distances,
    scott_factor,
)


def gaussian(points, covariance, seed=0):
    draw = np.random.default_rng(seed)
    return draw.multivariate_normal(np.full(len(covariance), 3.0), covariance, size=points)


def gaussian_bias(dimensions, bandwidth):
    """Bias of the estimate for a Gaussian in the limit of infinitely many points, nats."""
    return dimensions / 2 * (math.log1p(bandwidth**2) - bandwidth**2 / (1 + bandwidth**2))


def true_entropy(covariance):
    return 0.5 * np.linalg.slogdet(2 * math.pi * math.e * np.asarray(covariance))[1]


def test_the_sources_bandwidth_is_scotts():
    assert scott_factor(10_000, 4096) == pytest.approx(0.997756, abs=5e-7)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_a_gaussians_entropy_is_found_within_the_known_bias(dimensions):
    draw = np.random.default_rng(1)
    root = draw.normal(size=(dimensions, dimensions)) + 2 * np.eye(dimensions)
    covariance = root @ root.T
    found = kde_entropy(gaussian(4000, covariance))
    bias = gaussian_bias(dimensions, scott_factor(4000, dimensions))
    # The mean log-density of 4,000 points has a standard error of sqrt(dimensions / 2 / 4000): 0.02 for three.
    assert found - true_entropy(covariance) == pytest.approx(bias, abs=0.06)


@pytest.mark.parametrize("pairs", [2**24, 1000])
def test_it_is_scipys_density_with_the_own_point_and_ours_without(pairs, monkeypatch):
    monkeypatch.setattr(density, "_PAIRS_AT_ONCE", pairs)
    x = gaussian(150, [[2.0, 0.5], [0.5, 1.0]])
    expected = -float(stats.gaussian_kde(x.T).logpdf(x.T).mean())
    assert kde_entropy(x, leave_one_out=False) == pytest.approx(expected, abs=1e-9)
    covariance, h = np.cov(x.T), scott_factor(150, 2)
    left_out = []
    for i in range(150):
        others = np.delete(x, i, axis=0)
        kernels = stats.multivariate_normal(x[i], h**2 * covariance).logpdf(others)
        left_out.append(np.logaddexp.reduce(kernels) - math.log(149))
    assert kde_entropy(x) == pytest.approx(-np.mean(left_out), abs=1e-9)


def test_entropy_moves_as_a_linear_map_moves_it():
    x, change = gaussian(300, np.eye(3)), np.diag([2.0, 3.0, 0.5])
    assert kde_entropy(x @ change) - kde_entropy(x) == pytest.approx(math.log(3.0), abs=1e-9)


def test_in_many_dimensions_the_own_point_leaves_the_log_determinant_alone():
    """Whatever the shape of the data: here uniform, and Gaussian."""
    for draw in (np.random.default_rng(0).uniform, np.random.default_rng(0).normal):
        x = draw(size=(600, 200))
        h = scott_factor(600, 200)
        covariance = np.cov(x.T)
        alone = math.log(600) + 100 * math.log(2 * math.pi * h * h) + 0.5 * np.linalg.slogdet(covariance)[1]
        assert kde_entropy(x, leave_one_out=False) == pytest.approx(alone, abs=0.01)
        assert kde_entropy(x) > alone + 10


def test_leading_directions_are_those_of_the_largest_variance():
    x = gaussian(500, np.diag([1.0, 9.0, 4.0]))
    leading = leading_directions(torch.from_numpy(x).bfloat16(), 2).numpy()
    assert np.abs(np.corrcoef(leading[:, 0], x[:, 1])[0, 1]) > 0.99
    assert np.abs(np.corrcoef(leading[:, 1], x[:, 2])[0, 1]) > 0.99
    assert np.abs(np.cov(leading.T)[0, 1]) < 1e-2
    assert density_directions(2000, 4096) == 200 and density_directions(2000, 128) == 128


def dimension_of(points):
    """By Theorem 1: the mean distance to the nearest of D points falls as D^(-1/d)."""
    return -1 / distance_line(nearest_distances(points)).slope.value


@pytest.mark.parametrize(("dimension", "shape"), [(1, "cube"), (2, "cube"), (4, "gaussian"), (2, "sphere")])
def test_dimensions_by_distances_are_those_of_known_shapes(dimension, shape):
    draw = np.random.default_rng(dimension)
    x = draw.normal(size=(1500, dimension + (shape == "sphere")))
    x = x / np.linalg.norm(x, axis=1, keepdims=True) if shape == "sphere" else x
    x = draw.uniform(size=x.shape) if shape == "cube" else x
    # Turned into more channels, which changes no distance.
    turn = np.linalg.qr(draw.normal(size=(12, 12)))[0][: x.shape[1]]
    assert dimension_of(x @ turn) == pytest.approx(dimension, rel=0.15)


def test_scale_and_copies_change_no_dimension():
    x = gaussian(300, np.eye(3))
    copied = np.concatenate([x, x[:40]])
    assert dimension_of(1e3 * x) == pytest.approx(dimension_of(copied), rel=1e-6)


def test_points_that_are_nearly_copies_change_no_dimension():
    """Far from the origin, where distances are small beside the points."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 30)) + 50
    copied = np.concatenate([x, x[:100] + 1e-7 * draw.normal(size=(100, 30))])
    assert dimension_of(copied) == pytest.approx(dimension_of(x), rel=1e-4)


def test_few_points_have_no_dimension():
    with pytest.raises(DataError, match="need 100 different points, and there are 99"):
        nearest_distances(np.concatenate([gaussian(99, np.eye(2))] * 2))


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (np.ones((5, 2)), "span fewer than their 2 dimensions"),
        (np.eye(3), "needs more than 3 points, and there are 3"),
        (np.array([[1.0, math.nan], [0.0, 1.0]]), "a point is not finite"),
        (np.zeros(4), "rows of a matrix"),
    ],
)
def test_what_has_no_density_is_refused(points, message):
    with pytest.raises(DataError, match=message):
        kde_entropy(points)
