"""The trend of the measured best contexts: where they are, how they grow, and how far an answer is known."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from contextwise.base.errors import DataError
from contextwise_plan.scaling.observations import observations
from contextwise_plan.scaling.trend import MEASURED, Powers, fit_trend, lowest_point, measured_optima
from contextwise_plan.sweeps.points import SweepPoint

CONTEXTS = np.array([16.0, 32.0, 64.0, 128.0, 256.0])
VAGUE = Powers(budget=(0.4, 100.0), size=(-0.4, 100.0))
UNINFORMED = Powers(budget=(0.0, 100.0), size=(0.0, 100.0))
POWERS = (0.0, 0.1, 0.2, 0.5, 0.8, 0.95)


def sweep(best, budgets, sizes=((1e6, "nano"),), contexts=CONTEXTS, noise=0.0):
    """Losses that are parabolas in ln l around ``best(F, N)``, lower at larger budgets; ``noise``: its deviation, in nats."""
    draw = np.random.default_rng(0)
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
            float(5 - 0.1 * np.log(budget / 1e12) + 0.05 * np.log(context / best(budget, parameters)) ** 2)
            + noise * draw.standard_normal(),
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
    reading = lowest_point(CONTEXTS, losses)
    assert reading.context == pytest.approx(true) and reading.squares == pytest.approx(0, abs=1e-20)


def test_the_lowest_point_stays_near_what_was_measured():
    assert lowest_point(CONTEXTS, 3 + 0.1 * np.log2(CONTEXTS / 2) ** 2).context == 16  # not below the shortest
    assert lowest_point(CONTEXTS, np.array([3.2, 3.0, 3.1, 3.1, 9.0])).context < 64  # what is far off does not count
    assert lowest_point(CONTEXTS[:2], np.array([3.1, 3.0])).context == 32
    assert lowest_point(CONTEXTS, np.array([3.0, 3.3, 3.3, 3.2, 3.1])).context == 16  # a cap has no lowest point


def test_a_lowest_point_at_an_end_of_the_contexts_is_no_measured_optimum():
    """The second context has the lowest loss by a hair, on a line that falls towards the first: the best one may be shorter."""
    losses = 3 + np.array([0.0001, 0, 0.01, 0.011, 0.012])
    points = sweep(lambda *_: 6, [1e11, 1e12]).points  # at the smaller budget the shortest context has the lowest loss
    flat = [replace(point, loss=loss) for point, loss in zip(points[1::2], losses, strict=True)]
    assert losses.argmin() == 1 and lowest_point(CONTEXTS, losses).context == pytest.approx(16)
    assert measured_optima(observations([*points[::2], *flat]), "nano") == []


def test_budgets_at_an_end_of_the_contexts_are_left_out_before_some_are_chosen():
    """The best context is 17 at the first budget and 240 at the last; the parabolas there end at 16 and 256, others do not."""
    points = list(sweep(lambda budget, _: 60 * (budget / 3e11) ** 0.9, np.geomspace(1e11, 1e12, 2)).points)
    for i, lower in ((0, 1), (-1, -2)):  # the end's loss is a hair above its neighbour's
        at_budget = [point for point in points if point.flops == points[i].flops]
        losses = 3 + np.array([0.0001, 0, 0.01, 0.011, 0.012])[:: 1 if i == 0 else -1]
        for point, loss in zip(at_budget, losses, strict=True):
            points[points.index(point)] = replace(point, loss=float(loss) - 0.3 * (i == -1))
        assert losses.argmin() == lower % 5
    located = measured_optima(observations(points), "nano")
    assert len(located) == 2 and all(16 < reading.context < 256 for _, reading in located)


def test_a_power_law_is_found_and_followed():
    def best(budget, parameters):
        return 60 * (budget / 1e12) ** 0.3 * (parameters / 1e6) ** -0.5

    sizes = ((4e5, "pico"), (1e6, "nano"))
    observed = sweep(best, np.geomspace(2e11, 4e12, 60), sizes)
    trend = fit_trend(observed, "flops", VAGUE)
    assert trend.mean[1:] == pytest.approx([0.3, -0.5], abs=0.005)
    assert trend.context(2e13, 7e5) == pytest.approx(best(2e13, 7e5), rel=0.02)
    assert {tuple(row) for row in trend.measured[:, :1].tolist()} == {(4e5,), (1e6,)}
    by_time = fit_trend(observed, "seconds", VAGUE)  # at 10^10 FLOPs a second
    assert by_time.context(2e3, 7e5) == pytest.approx(trend.context(2e13, 7e5), rel=1e-6)


def test_the_lowest_point_varies_with_the_losses_as_its_slopes_say():
    draw, losses = np.random.default_rng(0), 3 + 0.05 * np.log(CONTEXTS / 60) ** 2
    readings = [lowest_point(CONTEXTS, losses + 1e-4 * draw.standard_normal(5)) for _ in range(4000)]
    spread, clean = np.std([np.log(reading.context) for reading in readings]), lowest_point(CONTEXTS, losses)
    assert clean.curve == pytest.approx(0.05)
    expected = 1e-4 * np.linalg.norm(list(clean.slopes.values())) / (2 * clean.curve)
    assert spread == pytest.approx(expected, rel=0.05)
    variance = sum(reading.squares for reading in readings) / sum(reading.freedom for reading in readings)
    assert np.sqrt(variance) == pytest.approx(1e-4, rel=0.05)


def test_one_budget_grows_as_the_prior_says():
    trend = fit_trend(sweep(lambda *_: 50, [1e12]))
    (power, deviation), (of_size, _) = MEASURED.budget, MEASURED.size
    assert trend.context(1e12, 1e6) == pytest.approx(50)
    assert trend.context(1e13, 1e6) == pytest.approx(50 * 10**power)
    assert trend.context(1e12, 2e6) == pytest.approx(50 * 2**of_size)
    growth = trend.growth(0.9)
    assert (growth.low, growth.high) == pytest.approx(norm.interval(0.9, power, deviation))
    assert trend.prior_weight(1) == pytest.approx(1) == trend.prior_weight(2)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize(("count", "off"), [(40, 0.004), (5, 0.04)])
def test_a_sweep_without_noise_overrules_the_prior(count, off, power):
    """The best context is 20 to 200 tokens long at the largest budget, and inside 8 to 1,024 at all."""
    end = 20 * 10**power
    observed = sweep(
        lambda budget, _: end * (budget / 2e12) ** power,
        np.geomspace(2e11, 2e12, count),
        contexts=2.0 ** np.arange(3, 11),
    )
    trend = fit_trend(observed)
    assert trend.mean[1] == pytest.approx(power, abs=off)
    growth, samples = trend.growth(0.9), trend.samples(1e13, np.full(400, 1e6))
    assert growth.low < power < growth.high and growth.high - growth.low < 8 * off
    assert samples.min() < end * 5**power < samples.max()


def test_few_noisy_budgets_are_weighed_against_the_prior():
    """The noisier the losses, the farther the answer from what the sweep alone says, towards the prior's power."""
    powers, shares, widths = Powers(budget=(0.9, 0.3)), [], []
    for noise in (0.0, 0.004, 0.01):
        observed = sweep(lambda budget, _: 60 * (budget / 1e12) ** 0.2, np.geomspace(2e11, 2e12, 5), noise=noise)
        trend, alone = fit_trend(observed, "flops", powers), fit_trend(observed, "flops", VAGUE).mean[1]
        shares.append((trend.mean[1] - alone) / (0.9 - alone))
        widths.append(trend.growth(0.9).high - trend.growth(0.9).low)
    assert 0 < shares[0] < shares[1] < shares[2] < 1
    assert widths[0] < widths[1] < widths[2]


@pytest.mark.parametrize("index", [1, 2])
def test_the_weight_of_the_prior_is_how_far_the_power_follows_it(index):
    """A prior whose mean is higher by 1, with the same spread: for each spread the power is higher by the prior's weight."""
    sizes = ((4e5, "pico"), (1e6, "nano"))
    observed = sweep(
        lambda f, n: 60 * (f / 1e12) ** 0.3 * (n / 1e6) ** -0.5, np.geomspace(5e11, 2e12, 3), sizes, noise=0.01
    )
    name = Powers._fields[index - 1]
    mean, deviation = MEASURED[index - 1]
    trend, moved = fit_trend(observed), fit_trend(observed, "flops", MEASURED._replace(**{name: (mean + 1, deviation)}))
    assert trend.weights @ (moved.means - trend.means)[:, index] == pytest.approx(trend.prior_weight(index))
    assert 0.01 < trend.prior_weight(index) < 1
    assert fit_trend(observed, "flops", UNINFORMED).prior_weight(index) < 1e-3


@pytest.mark.parametrize(
    ("power", "noise", "verdict"),
    [
        (0.5, 0.0, "it grows with the power 0.50 ["),
        (-0.5, 0.0, "it falls with the power −0.50 ["),
        (0.0, 0.03, "it may grow or fall, with the power "),
    ],
)
def test_growth_is_only_said_where_the_interval_excludes_zero(power, noise, verdict):
    observed = sweep(lambda f, _: 64 * (f / 1e12) ** power, np.geomspace(5e11, 2e12, 5), noise=noise)
    trend = fit_trend(observed, "flops", Powers(budget=(power, 0.3)))
    growth = trend.growth(0.9)
    assert verdict in trend.sentence("flops", "nano", growth)
    assert ("may grow or fall" in verdict) == (growth.low < 0 < growth.high)


def test_the_measured_best_contexts_of_a_size_are_said():
    """The best contexts of pico are below the shortest at all budgets but the last; those of nano are inside."""
    best = {4e5: lambda f: 34 if f > 1.9e12 else 3, 1e6: lambda f: 60 * (f / 1e12) ** 0.4}
    observed = sweep(lambda f, n: best[n](f), np.geomspace(5e11, 2e12, 4), ((4e5, "pico"), (1e6, "nano")))
    trend = fit_trend(observed)
    assert Counter(trend.measured[:, 0]) == {4e5: 1, 1e6: 4}
    said = {size: trend.sentence("flops", size, trend.growth(0.9)) for size in trend.sizes}
    assert (
        "is 34 for pico (at 2.0 × 10¹² FLOPs, the only budget that locates it)." in said["pico"]
    )  # where runs end, not interpolated between budgets
    assert "goes from 45 to 79 for nano (5.0 × 10¹¹ FLOPs to 2.0 ×" in said["nano"]


def test_the_posterior_is_that_of_bayes():
    """Against the density of all optima at once: a normal with the covariance of prior, shared and single deviations."""
    sizes = ((4e5, "pico"), (1e6, "nano"))
    observed = sweep(
        lambda f, n: 60 * (f / 1e12) ** 0.3 * (n / 1e6) ** -0.5, np.geomspace(5e11, 2e12, 5), sizes, noise=0.004
    )
    trend, wide = fit_trend(observed), 100
    log_n, log_f, log_l = np.log(trend.measured).T
    f, n = log_f - trend.centre[1], log_n - trend.centre[0]
    (g, dg), (h, dh) = MEASURED[:2]
    readings = {size: [reading for _, reading in measured_optima(observed, size)] for _, size in sizes}
    every = [reading for some in readings.values() for reading in some]
    variance = sum(reading.squares for reading in every) / sum(reading.freedom for reading in every)
    rows = []
    for size, some in readings.items():
        curve = np.mean([reading.curve for reading in some])
        rows += [(size, np.array([reading.slopes.get(at, 0) / (2 * curve) for at in CONTEXTS])) for reading in some]
    same = variance * np.array([[a @ b * (size == other) for other, b in rows] for size, a in rows])
    around = wide**2 + dg**2 * np.outer(f, f) + dh**2 * np.outer(n, n) + same
    log_weights, means, off = [], [], log_l - g * f - h * n
    for spread in trend.spreads:
        covariance = around + spread**2 * np.eye(len(f))
        prior = -MEASURED.freedom * np.log(spread) - MEASURED.freedom * MEASURED.spread**2 / (2 * spread**2)
        log_weights.append(prior - np.linalg.slogdet(covariance)[1] / 2 - off @ np.linalg.solve(covariance, off) / 2)
        means.append(g + dg**2 * f @ np.linalg.solve(covariance, off))
    weights = np.exp(np.array(log_weights) - max(log_weights))
    np.testing.assert_allclose(trend.weights, weights / weights.sum(), atol=1e-4)
    np.testing.assert_allclose(trend.means[:, 1], means, atol=1e-3)


def test_samples_are_quantiles_of_the_posterior():
    trend = fit_trend(sweep(lambda budget, _: 60 * (budget / 1e12) ** 0.3, np.geomspace(5e11, 2e12, 5), noise=0.004))
    design = np.array([1.0, np.log(1e13) - trend.centre[1], np.log(1e6) - trend.centre[0]])
    draw = np.random.default_rng(1)
    some = draw.choice(len(trend.weights), size=100_000, p=trend.weights)
    errors = np.sqrt(np.einsum("i,kij,j->k", design, trend.covariances, design) + trend.spreads**2)
    drawn = trend.means[some] @ design + errors[some] * draw.standard_normal(len(some))
    samples = np.log(trend.samples(1e13, np.full(4000, 1e6)))
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    np.testing.assert_allclose(np.quantile(samples, levels), np.quantile(drawn, levels), atol=0.02)


def test_what_all_budgets_share_is_not_averaged_out():
    """Losses of a context are off by the same at each of 40 budgets: they agree, and may yet all be wrong."""
    clean = sweep(lambda budget, _: 60 * (budget / 1e12) ** 0.4, np.geomspace(5e11, 2e12, 40))
    luck = dict(zip(CONTEXTS, (0.01, -0.01, 0.012, -0.01, 0.01), strict=True))
    off = observations([replace(p, loss=p.loss + luck[p.context]) for p in clean.points])
    widths = [
        np.log(np.divide(*np.quantile(fit_trend(o).samples(1e12, np.full(400, 1e6)), [0.95, 0.05])))
        for o in (clean, off)
    ]
    assert widths[1] > 2 * widths[0]


def test_the_shortest_context_is_no_optimum_where_others_are_inside():
    """At the smaller budgets the best context is below the shortest one: they say nothing about its growth."""
    observed = sweep(lambda budget, _: 40 * (budget / 1e12) ** 0.5, np.geomspace(2e10, 4e12, 40))
    trend = fit_trend(observed, "flops", VAGUE)
    assert trend.mean[1] == pytest.approx(0.5, abs=0.02) and trend.measured[:, 2].min() > 16
    below = sweep(lambda *_: 5, np.geomspace(5e11, 4e12, 10))
    with pytest.raises(DataError, match="at no budget .* 16 is the shortest that was tried"):
        fit_trend(below)


def test_without_a_comparison_there_is_no_trend():
    with pytest.raises(DataError, match="train the contexts of a size for about the same flops"):
        fit_trend(sweep(lambda *_: 50, [1e12], contexts=CONTEXTS[:1]))
