"""The trend of the measured best contexts: where they are, how they grow, and how far an answer is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from contextwise.analysis.scaling.observations import observations
from contextwise.analysis.scaling.trend import MEASURED, Powers, fit_trend, lowest_point
from contextwise.analysis.sweep_points import SweepPoint
from contextwise.base.errors import DataError

CONTEXTS = np.array([16.0, 32.0, 64.0, 128.0, 256.0])
VAGUE = Powers(budget=(0.4, 100.0), size=(-0.4, 100.0))


def sweep(best, budgets, sizes=((1e6, "nano"),), contexts=CONTEXTS):
    """Losses that are parabolas in ln l around ``best(F, N)``, lower at larger budgets."""
    points = [
        SweepPoint(
            f"{name}-c{context:.0f}",
            name,
            int(parameters),
            int(context),
            0,
            1,
            int(budget / 6e6),
            budget,
            budget / 1e10,
            float(5 - 0.1 * np.log(budget / 1e12) + 0.05 * np.log(context / best(budget, parameters)) ** 2),
            standard_error=0.01,
        )
        for parameters, name in sizes
        for context in contexts
        for budget in budgets
    ]
    return observations(points)


@given(st.floats(24, 170))
def test_the_lowest_point_is_that_of_a_parabola(true):
    losses = 3 + 0.1 * np.log2(CONTEXTS / true) ** 2
    assert lowest_point(CONTEXTS, losses) == pytest.approx(true)


def test_the_lowest_point_stays_near_what_was_measured():
    assert lowest_point(CONTEXTS, 3 + 0.1 * np.log2(CONTEXTS / 2) ** 2) == 16  # not below the shortest
    assert lowest_point(CONTEXTS, np.array([3.2, 3.0, 3.1, 3.1, 9.0])) < 64  # what is far off does not count
    assert lowest_point(CONTEXTS[:2], np.array([3.1, 3.0])) == 32
    assert lowest_point(CONTEXTS, np.array([3.0, 3.3, 3.3, 3.2, 3.1])) == 16  # a cap has no lowest point


def test_a_power_law_is_found_and_followed():
    def best(budget, parameters):
        return 60 * (budget / 1e12) ** 0.3 * (parameters / 1e6) ** -0.5

    sizes = ((4e5, "pico"), (1e6, "nano"))
    observed = sweep(best, np.geomspace(2e11, 4e12, 60), sizes)
    trend = fit_trend(observed, "flops", VAGUE)
    assert trend.mean[1:] == pytest.approx([0.3, -0.5], abs=0.005)
    assert trend.context(2e13, 7e5) == pytest.approx(best(2e13, 7e5), rel=0.02)
    assert "(1M parameters, 4.0 × 10¹² FLOPs)" in trend.sentence("flops", 0.9)
    assert {tuple(row) for row in trend.measured[:, :1].tolist()} == {(4e5,), (1e6,)}
    by_time = fit_trend(observed, "seconds", VAGUE)  # at 10^10 FLOPs a second
    assert by_time.context(2e3, 7e5) == pytest.approx(trend.context(2e13, 7e5), rel=1e-6)


def test_one_budget_grows_as_the_prior_says():
    trend = fit_trend(sweep(lambda *_: 50, [1e12]))
    (power, deviation), (of_size, _) = MEASURED.budget, MEASURED.size
    assert trend.context(1e12, 1e6) == pytest.approx(50)
    assert trend.context(1e13, 1e6) == pytest.approx(50 * 10**power)
    assert trend.context(1e12, 2e6) == pytest.approx(50 * 2**of_size)
    # The one optimum has no residual: 0.5 of an optimum beside the four of the prior.
    freedom, spread = MEASURED.freedom + 0.5, MEASURED.spread
    assert trend.spread == pytest.approx(spread * np.sqrt(MEASURED.freedom / freedom))
    growth = trend.growth(0.95)
    half = student.ppf(0.975, freedom) * deviation * trend.spread / spread
    assert growth.high - growth.value == pytest.approx(half)
    assert "from 50 (1.0 × 10¹² FLOPs) to 50" in trend.sentence("flops", 0.9)


def test_the_prior_and_the_sweep_are_weighed_by_precision():
    powers = Powers(budget=(0.0, 0.35), spread=0.25)
    observed = sweep(lambda budget, _: 40 * (budget / 1e12) ** 0.6, [1e12, np.e * 1e12])
    trend = fit_trend(observed, "flops", powers)
    # Two budgets a factor e apart; the line between them is read at eight, which pull as eight optima do.
    budgets = np.linspace(-0.5, 0.5, 8)
    own, prior = np.square(budgets).sum() / 0.25**2, 1 / powers.budget[1] ** 2
    vague = fit_trend(observed, "flops", VAGUE).mean[1]
    assert trend.mean[1] == pytest.approx(vague * own / (own + prior), rel=0.02)


def test_samples_are_as_wide_as_the_trend_is_uncertain():
    trend = fit_trend(sweep(lambda *_: 50, [1e12]))
    far = np.log(trend.samples(1e13, np.full(4000, 1e6)) / trend.context(1e13, 1e6))
    near = np.log(trend.samples(1e12, np.full(4000, 1e6)) / trend.context(1e12, 1e6))
    # Where it was measured: the spread of the one optimum, and of the one to be located.
    ratio = np.sqrt(2 * MEASURED.spread**2 + (MEASURED.budget[1] * np.log(10)) ** 2) / np.sqrt(2 * MEASURED.spread**2)
    np.testing.assert_allclose(far, near * ratio, atol=1e-9)
    assert np.quantile(near, 0.95) == pytest.approx(student.ppf(0.95, 4.5) * trend.spread * np.sqrt(2), rel=0.01)


def test_a_sweep_that_agrees_with_itself_is_believed_more():
    clean = sweep(lambda budget, _: 40 * (budget / 1e12) ** 0.4, np.geomspace(5e11, 4e12, 12))
    noise = dict(zip(CONTEXTS, (0.05, -0.03, 0.02, -0.05, 0.03), strict=True))
    noisy = observations([replace(p, loss=p.loss + noise[p.context] * (-1) ** p.tokens) for p in clean.points])
    assert fit_trend(clean).spread < fit_trend(noisy).spread
    assert fit_trend(clean).growth(0.9).high < fit_trend(noisy).growth(0.9).value + 0.35


def test_the_shortest_context_is_no_optimum_where_others_are_inside():
    """At the smaller budgets the best context is below the shortest one: they say nothing about its growth."""
    observed = sweep(lambda budget, _: 40 * (budget / 1e12) ** 0.5, np.geomspace(2e10, 4e12, 40))
    trend = fit_trend(observed, "flops", VAGUE)
    assert trend.mean[1] == pytest.approx(0.5, abs=0.02) and trend.measured[:, 2].min() > 16
    below = sweep(lambda *_: 5, np.geomspace(5e11, 4e12, 10))
    assert set(fit_trend(below).measured[:, 2].tolist()) == {16.0}


def test_without_a_measured_optimum_there_is_no_trend():
    with pytest.raises(DataError, match="measured no best context"):
        fit_trend(sweep(lambda *_: 50, [1e12], contexts=CONTEXTS[:2]))
