"""Entropies and dimensions of spectra whose answers are known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextwise.base.errors import ConfigError, DataError
from contextwise_papers.intrinsic_entropy.fits import fit_line
from contextwise_papers.intrinsic_entropy.spectra import (
    THRESHOLDS,
    chosen_sizes,
    exponential_regime,
    increments,
    intrinsic_dimensions,
    intrinsic_entropies,
    rank,
    relative_eigenvalues,
)

positive = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12)


def test_a_hand_worked_spectrum():
    eigenvalues = np.array([2.0, 8.0, 1.0, 0.08])
    assert relative_eigenvalues(eigenvalues).tolist() == [1.0, 0.25, 0.125, 0.01]
    assert intrinsic_entropies(eigenvalues) == pytest.approx(
        [0.0, math.log(1 / 4), math.log(1 / 32), math.log(1 / 3200)]
    )
    assert intrinsic_dimensions(eigenvalues, [0.01, 0.1, 0.125, 0.2, 0.25, 0.3, 1.0]).tolist() == [
        4, 3, 3, 2, 2, 1, 1,
    ]  # fmt: skip


def test_the_thresholds_are_the_papers_twenty():
    assert len(THRESHOLDS) == 20 and (THRESHOLDS[0], THRESHOLDS[-1]) == (0.002, 0.25)


@given(positive, st.floats(0.01, 100))
def test_the_scale_of_the_features_makes_no_difference(values, scale):
    eigenvalues = np.array(values)
    np.testing.assert_allclose(intrinsic_entropies(eigenvalues), intrinsic_entropies(scale * eigenvalues), atol=1e-9)


@given(positive, st.lists(st.floats(0.001, 1.0), min_size=1, max_size=5))
def test_the_dimension_counts(values, thresholds):
    relative = np.array(values) / max(values)
    expected = [sum(bool(value >= threshold) for value in relative) for threshold in thresholds]
    assert intrinsic_dimensions(np.array(values), thresholds).tolist() == expected


def test_eigenvalues_that_are_rounding_do_not_count():
    eigenvalues = np.array([1.0, 0.5, 1e-17, 0.0])
    assert rank(eigenvalues) == 2
    assert intrinsic_entropies(eigenvalues) == pytest.approx([0.0, math.log(0.5)])


def test_increments_are_against_the_shortest_context():
    spectra = {64: np.array([2.0, 1.0, 0.5]), 16: np.array([1.0, 0.4, 0.2]), 32: np.array([1.0, 0.5, 0.0])}
    found = increments(spectra)
    assert list(found) == [32, 64]
    assert found[32] == pytest.approx([0.0, 0.25])  # up to the least rank of the three, two
    assert found[64] == pytest.approx([0.0, 0.25])


@given(st.integers(2, 5000))
def test_chosen_sizes_end_at_the_rank(shared):
    sizes = chosen_sizes(shared)
    assert sizes[-1] == shared and sizes == sorted(set(sizes)) and sizes[0] >= 2 and len(sizes) <= 6


def test_chosen_sizes_of_a_single_direction_are_none():
    assert chosen_sizes(1) == []


@pytest.mark.parametrize(
    ("eigenvalues", "message"),
    [
        ([0.0, 0.0], "the features do not vary"),
        ([1.0, math.nan], "must be finite and not negative"),
        ([1.0, -0.1], "must be finite and not negative"),
        ([], "must be finite"),
    ],
)
def test_what_is_no_spectrum_is_refused(eigenvalues, message):
    with pytest.raises(DataError, match=message):
        relative_eigenvalues(np.array(eigenvalues))


def test_the_exponential_regime_and_its_slope_are_those_of_a_made_up_spectrum():
    """λ_i of a power law up to an eighth of 400 channels, then γ(l) exp(-α i); a loss that falls by k with the regime's S."""
    width, alpha, k = 400, 0.02, 0.003
    index = np.arange(1, width + 1)
    growth = {8: 0.5, 32: 0.8, 128: 0.9, 512: 1.0}
    spectra = {c: np.append(50.0, (g * np.exp(-alpha * index) * 10)[1:]) for c, g in growth.items()}
    regime = exponential_regime(spectra)
    assert (regime.directions[0], regime.directions[-1]) == (49, 390)
    assert regime.alpha == pytest.approx(alpha) and regime.scale == pytest.approx(342 * alpha)
    assert regime.growth == pytest.approx({c: math.log(g) for c, g in growth.items()})
    assert regime.prefactors == pytest.approx(regime.growth)
    # Where the decays differ, γ(l) is that of the first index alone.
    steeper = spectra | {8: np.append(50.0, (0.5 * np.exp(-1.1 * alpha * (index - 1)) * 10)[1:])}
    assert exponential_regime(steeper).prefactors[8] == pytest.approx(math.log(0.5) + alpha)
    losses = {c: 3 - k * s for c, s in regime.entropies().items()}
    # Eq. 36 and 37 on the measured dimensions: the slope is k s, up to the rounding to whole directions.
    dimensions = regime.dimensions(spectra)
    assert len(dimensions) >= 4
    for row in dimensions.values():
        assert fit_line(row, losses).slope.value == pytest.approx(-k * regime.scale, rel=0.06)


def test_a_spectrum_of_too_low_a_rank_has_no_regime():
    spectra = {c: np.where(np.arange(128) < 5, 1.0, 0.0) for c in (8, 16)}
    with pytest.raises(
        ConfigError, match="the spectra have rank 5, and their regimes, at width 128, begin at the directions 2 and 16"
    ):
        exponential_regime(spectra)


def test_a_power_law_has_its_exponent():
    regime = exponential_regime({c: np.arange(1, 101) ** -1.5 for c in (1, 2)})
    assert [-line.slope.value for line in regime.zipf.values()] == pytest.approx([1.5, 1.5])
