"""Fits: known curves come back, whatever the order of the contexts, and intervals hold what they promise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from contextwise.base.errors import ConfigError
from contextwise.base.intervals import correlation_estimate
from contextwise_papers.intrinsic_entropy.fits import correlations, fit_line, fit_power

CONTEXTS = [16, 32, 64, 128, 256, 512, 1024]
QUICK = settings(max_examples=40)


def power(floor, scale, exponent, contexts=CONTEXTS):
    return {context: floor + scale * context**-exponent for context in contexts}


@QUICK
@given(floor=st.floats(0, 5), scale=st.floats(0.5, 50), exponent=st.floats(0.2, 3), order=st.permutations(CONTEXTS))
def test_an_exact_power_law_comes_back(floor, scale, exponent, order):
    exact = power(floor, scale, exponent)
    fit = fit_power({context: exact[context] for context in order})
    assert fit.floor.value == pytest.approx(floor, abs=1e-4)
    assert fit.scale.value == pytest.approx(scale, rel=1e-2)
    assert fit.exponent.value == pytest.approx(exponent, rel=1e-3)
    assert fit.contexts == tuple(CONTEXTS)
    np.testing.assert_allclose(fit.at(np.array(CONTEXTS)), [exact[c] for c in CONTEXTS], atol=1e-6)


def test_a_curve_that_rises_to_its_limit_has_a_negative_scale():
    """J.3's dimension of the synthetic task: ID = C0 − C / l^γ, with the numbers of visible tasks that the source gives."""
    visible = {27: 16, 32: 22, 36: 26, 43: 31, 63: 38, 94: 43}
    fit = fit_power(visible)
    assert fit.floor.value == pytest.approx(51.1, abs=1.0)
    assert fit.exponent.value == pytest.approx(1.18, abs=0.06)
    assert -fit.scale.value == pytest.approx(1.7e3, abs=0.3e3)
    assert fit.r_squared > 0.999
    # The source's ± are standard errors; the intervals here are t times those.
    t = stats.t.ppf(0.975, 3)
    assert (fit.exponent.high - fit.exponent.value) / t == pytest.approx(0.06, abs=0.01)
    assert (fit.floor.high - fit.floor.value) / t == pytest.approx(1.0, abs=0.1)
    assert (fit.scale.high - fit.scale.value) / t == pytest.approx(0.3e3, abs=0.05e3)


@pytest.mark.long
def test_intervals_hold_the_truth_about_as_often_as_they_say():
    draw, inside = np.random.default_rng(0), np.zeros(3)
    truth = power(3.0, 4.0, 0.8)
    for _ in range(200):
        noisy = {context: value + draw.normal(0, 0.005) for context, value in truth.items()}
        fit = fit_power(noisy)
        for i, (estimate, value) in enumerate([(fit.floor, 3.0), (fit.scale, 4.0), (fit.exponent, 0.8)]):
            inside[i] += estimate.low <= value <= estimate.high
    assert (inside > 200 * 0.9).all(), inside


def test_a_line_is_scipys():
    draw = np.random.default_rng(0)
    x = {context: float(np.log(context)) for context in CONTEXTS}
    y = {context: 2 - 0.3 * x[context] + draw.normal(0, 0.05) for context in reversed(CONTEXTS)}
    fit = fit_line(x, y)
    expected = stats.linregress([x[c] for c in CONTEXTS], [y[c] for c in CONTEXTS])
    t = stats.t.ppf(0.975, 5)
    assert fit.slope.value == pytest.approx(expected.slope)
    assert fit.intercept.value == pytest.approx(expected.intercept)
    assert fit.slope.high - fit.slope.value == pytest.approx(t * expected.stderr)
    assert fit.intercept.high - fit.intercept.value == pytest.approx(t * expected.intercept_stderr)
    wider = stats.t.ppf(0.995, 5)  # at another confidence with the same degrees of freedom, as claims ask for it
    assert fit.slope.at(0.99).high - fit.slope.value == pytest.approx(wider * expected.stderr)
    assert fit.intercept.at(0.99).high - fit.intercept.value == pytest.approx(wider * expected.intercept_stderr)
    law = fit_power(y)
    for each in (law.floor, law.scale, law.exponent):
        ratio = stats.t.ppf(0.995, 4) / stats.t.ppf(0.975, 4)
        assert each.at(0.99).high - each.value == pytest.approx(ratio * (each.high - each.value))
    assert fit.r_squared == pytest.approx(expected.rvalue**2)
    assert fit.correlation == pytest.approx(expected.rvalue)


@pytest.mark.parametrize("points", [4, 7, 30])
def test_intervals_of_correlations_are_scipys(points):
    draw = np.random.default_rng(points)
    x, y = draw.normal(size=(2, points))
    expected = stats.pearsonr(x, x + y)
    found = correlation_estimate(float(expected.statistic), points)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_a_perfect_correlation_has_an_interval_and_three_points_none():
    perfect = correlation_estimate(1 + 1e-16, 9)
    assert 0.99999 < perfect.low <= perfect.high <= 1
    assert correlation_estimate(0.5, 3).low is None


def test_values_are_joined_by_context_not_by_place():
    line = fit_line({64: 6.0, 16: 4.0, 32: 5.0, 8: 3.0}, {8: 0.0, 16: 1.0, 128: 9.0, 64: 3.0})
    assert line.contexts == (8, 16, 64) and line.slope.value == pytest.approx(1.0)
    rising = {context: float(i) for i, context in enumerate(CONTEXTS)}
    falling = {context: -rising[context] for context in reversed(CONTEXTS)}
    assert fit_line(rising, falling).correlation == pytest.approx(-1.0)


def test_correlations_leave_out_what_does_not_vary():
    series = {
        "a": {16: 1.0, 32: 2.0, 64: 4.0},
        "flat": {16: 1.0, 32: 1.0, 64: 1.0},
        "b": {64: -4.0, 32: -2.0, 16: -1.0, 8: 100.0},
    }
    names, matrix = correlations(series)
    assert names == ["a", "b"]
    np.testing.assert_allclose(matrix, [[1, -1], [-1, 1]], atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fit_power(power(1, 1, 1, [16, 32, 64])), "needs four contexts or more to be fitted, and there are 3"),
        (lambda: fit_power(dict.fromkeys(CONTEXTS, 2.0)), "they are all the same"),
        (lambda: fit_power({c: 5 - 0.1 * np.log(c) ** 2 for c in CONTEXTS}), "do not level off"),
        (lambda: fit_line({16: 1.0, 32: 2.0}, {16: 1.0, 32: 2.0}), "needs three contexts or more"),
        (lambda: fit_line(dict.fromkeys(CONTEXTS, 7.0), power(1, 1, 1)), "x is 7 at every context"),
        (lambda: correlations({"a": {16: 1.0, 32: 2.0}}), "correlations need three contexts or more"),
    ],
)
def test_what_cannot_be_fitted_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
