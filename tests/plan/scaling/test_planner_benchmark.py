"""``benchmarks/planner.py`` on numbers worked out by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.harness import RESULTS
from benchmarks.planner import (
    LEAST,
    VAGUE,
    ahead,
    budgets_of,
    compare,
    measured,
    one_run,
    parabola,
    predicted_loss,
    prior,
    regret,
    summary,
    vertex,
)

from contextwise_plan.scaling.analysis import Analysis
from contextwise_plan.scaling.observations import observations
from contextwise_plan.scaling.trend import MEASURED, fit_trend
from contextwise_plan.sweeps.points import SweepPoint
from laws import CONTEXTS as DRAWN
from laws import drawn_points, flops_per_token, one_size_loss, true_loss

CONTEXTS = np.array([16.0, 32.0, 64.0, 128.0])
BUDGETS = (1e13, 2e13, 4e13, 8e13, 1.6e14)


def test_a_parabola_has_its_lowest_point_between_the_contexts():
    losses = 3 + 0.1 * np.log2(CONTEXTS / 45.25) ** 2
    assert parabola(CONTEXTS, losses) == pytest.approx(45.25) == vertex(CONTEXTS, losses)
    assert parabola(CONTEXTS, 3 + 0.1 * np.log2(CONTEXTS / 8) ** 2) == pytest.approx(16)  # not beyond them
    assert parabola(CONTEXTS, np.array([3.0, 3.3, 3.2, 3.1])) == 16  # a cap: the best of them


def test_the_measured_optimum_is_that_of_the_best_and_its_neighbours():
    """3.1, 3.0, 3.1 around 32; what is farther off does not count."""
    assert vertex(CONTEXTS, np.array([3.1, 3.0, 3.1, 9.0])) == pytest.approx(32)
    assert vertex(CONTEXTS, np.array([3.0, 3.1, 3.2, 3.3])) == 16


def test_the_regret_is_that_of_the_nearest_trained_context():
    losses = np.array([3.2, 3.0, 3.1, 3.4])
    assert regret(CONTEXTS, losses, 44) == 0  # below 45.25, the middle of 32 and 64
    assert regret(CONTEXTS, losses, 46) == pytest.approx(0.1)
    assert regret(CONTEXTS, losses, 1000) == pytest.approx(0.4)


def made_up():
    """A sweep without noise, at equal budgets."""
    points, parameters = [], 900e3
    for context in (32, 64, 128, 256, 512, 1024):
        for budget in BUDGETS:
            tokens = budget / flops_per_token(parameters, context)
            loss = float(one_size_loss(context, parameters, tokens))
            about = f"c{context}", "nano", int(parameters), context, 0
            points.append(SweepPoint(*about, int(tokens), int(tokens), budget, budget, loss, standard_error=0.01))
    return observations(points)


@pytest.mark.long
def test_ways_are_shown_the_smaller_budgets_alone():
    """A law without noise is followed; a rule that repeats the past is behind by as much as it grows."""
    observed = made_up()
    assert budgets_of(observed) == list(BUDGETS)
    *_, row = compare(observed, 200, MEASURED)
    grid = np.geomspace(32, 1024, 4000)
    losses = one_size_loss(grid, 900e3, BUDGETS[-1] / flops_per_token(900e3, grid))
    true = grid[losses.argmin()]
    assert row["flops"] == BUDGETS[-1] and row["measured"] == pytest.approx(true, rel=0.1)
    assert row["answers"]["law"] == pytest.approx(true, rel=0.02)
    assert row["answers"]["planner"] == pytest.approx(true, rel=0.2)
    assert row["answers"]["median document"] == 200 and row["answers"]["last best"] in (128, 256)
    for way, answer in row["answers"].items():
        assert row["errors"][way] == pytest.approx(max(answer / row["measured"], row["measured"] / answer))
    assert row["regrets"]["planner"] == 0
    low, high = row["intervals"]["planner"]
    assert row["inside"]["planner"] == (low <= row["measured"] <= high)
    changed = [replace(point, loss=9.0) if point.flops == BUDGETS[-1] else point for point in observed.points]
    assert compare(observations(changed), 200, MEASURED)[-1]["answers"] == row["answers"]


def test_a_measured_loss_is_that_of_the_size_at_that_budget():
    observed = observations(drawn_points(count=400, sizes={"nano": 900e3}))
    contexts, losses = measured(observed, 0, 5e13)
    assert contexts.tolist() == list(DRAWN)
    expected = true_loss(contexts, 900e3, 5e13 / flops_per_token(900e3, contexts))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_the_interval_of_one_run_is_wider():
    analysis = Analysis(observations(drawn_points(run_noise=0.006, count=8)), resamples=200)
    losses = np.log(analysis.ensemble.loss(256, np.array([900e3]), 20e6))
    assert one_run(analysis, losses).std() > 1.3 * losses.std()
    predicted = predicted_loss(analysis, (256.0, 900e3, 20e6), 1e14)
    assert predicted.value == pytest.approx(analysis.law.loss(256.0, 900e3, 20e6)[0])
    assert predicted.low < predicted.value < predicted.high


def test_the_prior_is_the_mean_and_the_spread_of_other_sweeps():
    trend = fit_trend(made_up(), "flops", VAGUE)
    one, other = (replace(trend, means=np.tile([3.0, power, 0.0], (len(trend.weights), 1))) for power in (0.2, 0.6))
    powers = prior([one, other])
    assert powers.budget == pytest.approx((0.4, 0.4 / np.sqrt(2)))
    assert powers.size == MEASURED.size  # one size each
    assert prior([one, one]).budget == pytest.approx((0.2, LEAST))


def test_the_summary_is_over_cases():
    rows = [
        {"answers": {"a": 1, "b": 2}, "errors": {"a": e, "b": 2}, "regrets": {"a": r, "b": 0.5}, "inside": {"a": i}}
        for e, r, i in ((1.0, 0.0, True), (1.5, 0.01, True), (3.0, 0.2, False))
    ]
    ways = summary(rows)
    assert ways["a"]["median_error"] == 1.5 and ways["a"]["covered"] == pytest.approx(2 / 3)
    assert (ways["a"]["mean_regret"], ways["a"]["largest_regret"]) == (pytest.approx(0.07), 0.2)
    assert ways["b"]["median_regret"] == 0.5 and "covered" not in ways["b"]


def test_the_lead_is_a_mean_over_sweeps():
    """Leads of 0.1 and 0.3 nats in one sweep, 0.6 in another: 0.2 and 0.6, so 0.4."""
    rows = [
        {"sweep": sweep, "errors": {"planner": 1.0, "rule": np.e}, "regrets": {"planner": 0.0, "rule": regret}}
        for sweep, regret in (("a", 0.1), ("a", 0.3), ("b", 0.6))
    ]
    assert ahead(rows, "rule", "regrets").value == pytest.approx(0.4)
    assert ahead(rows, "rule", "errors").value == pytest.approx(1.0)


def test_the_prior_in_use_is_that_of_the_published_sweeps():
    published = json.loads((RESULTS / "planner-cpu.json").read_text())["prior"]
    for name in ("budget", "size"):
        (mean, deviation), (found, spread) = getattr(MEASURED, name), published[name]
        assert mean == pytest.approx(found, abs=0.05) and spread <= deviation * 1.1
