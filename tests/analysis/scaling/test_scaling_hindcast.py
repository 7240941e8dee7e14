"""The check: what is hidden stays hidden, and a true law predicts it."""

import dataclasses

import numpy as np
import pytest

from contextwise.analysis.optimum import cells, tracks
from contextwise.analysis.scaling.analysis import Analysis
from contextwise.analysis.scaling.hindcast import Hindcast
from contextwise.analysis.scaling.observations import common_budgets, measured, observations
from contextwise.analysis.scaling.trend import METHOD, fit_trend
from contextwise.base.errors import DataError
from laws import CONTEXTS, drawn_points, flops_per_token, true_loss


@pytest.fixture(scope="module")
def observed():
    return observations(drawn_points(run_noise=0.003, point_noise=0.001, count=20))


def test_the_law_sees_nothing_of_what_is_hidden(observed):
    """Hidden losses may be anything: the fit and its predictions stay the same to the last bit."""
    above = 2e14
    changed = dataclasses.replace(observed, loss=np.where(observed.flops > above, 7.0, observed.loss))
    one, other = Hindcast(observed, above, resamples=30), Hindcast(changed, above, resamples=30)
    assert one.analysis.law.theta.tolist() == other.analysis.law.theta.tolist()
    assert [run.predicted for run in one.runs] == [run.predicted for run in other.runs]
    assert other.error > 0.5 > one.error
    assert one.shown == (observed.flops <= above).sum() and one.hidden == (observed.flops > above).sum()


def test_what_was_hidden_is_predicted(observed):
    check = Hindcast(observed, resamples=100)
    assert check.beyond > 10
    assert np.mean([run.inside for run in check.runs]) >= 0.7
    assert check.error < 0.02 < check.unchanged / 3
    assert check.optima and all(row.inside for row in check.optima)
    for row in check.optima:
        assert row.as_good[0] <= row.measured <= row.as_good[1] and row.measured in CONTEXTS


def test_the_best_context_is_that_of_the_trend_of_what_was_shown(observed):
    check = Hindcast(observed, resamples=30)
    trend = fit_trend(check.analysis.observed)
    sizes = dict(zip(observed.sizes, observed.size_parameters, strict=True))
    assert check.optima
    for row in check.optima:
        followed = np.clip(trend.context(row.budget, sizes[row.size]), min(CONTEXTS), max(CONTEXTS))
        assert row.predicted.value == pytest.approx(float(followed)) and row.predicted.method == METHOD


def test_without_noise_predicted_is_measured():
    check = Hindcast(observations(drawn_points(count=24)), resamples=30)
    for run in check.runs:
        assert run.predicted.value == pytest.approx(run.measured, rel=1e-5)
    for row in check.optima:
        # Between two points of a run the measured loss is interpolated.
        assert row.predicted_loss.value == pytest.approx(row.measured_loss, rel=2e-3)
        assert row.as_good == (row.measured, row.measured)


def test_a_measured_optimum_is_the_lowest_loss_at_that_budget():
    observed = observations(drawn_points(count=400, sizes={"nano": 900e3}))
    budget = float(common_budgets(observed, 0)[-1])
    contexts, losses = measured(observed, 0, budget)
    assert contexts.tolist() == list(CONTEXTS)
    expected = true_loss(contexts, 900e3, budget / flops_per_token(900e3, contexts))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_seeds_are_averaged():
    observed = observations(drawn_points(sizes={"nano": 900e3}, run_noise=0.01, seeds=3, count=6))
    budget = float(common_budgets(observed, 0)[-1])
    _, losses = measured(observed, 0, budget)
    alone = [
        measured(observed.where(np.array([observed.runs[i].endswith(f"seed{seed}") for i in observed.run])), 0, budget)[
            1
        ]
        for seed in range(3)
    ]
    np.testing.assert_allclose(losses, np.mean(alone, axis=0), rtol=1e-12)


def test_the_check_reads_losses_as_the_page_of_a_sweep_does():
    points = drawn_points(sizes={"nano": 900e3}, run_noise=0.01, seeds=2, count=6)
    observed = observations(points)
    for budget in common_budgets(observed, 0):
        shown = cells(tracks(points, "flops"), budget)
        contexts, losses = measured(observed, 0, budget)
        assert contexts.tolist() == [cell.context for cell in shown]
        assert losses.tolist() == [cell.loss for cell in shown]


def test_hiding_nothing_or_all_is_refused(observed):
    with pytest.raises(DataError, match="no point of the sweep is above"):
        Hindcast(observed, observed.flops.max())
    with pytest.raises(DataError, match="all points of the sweep are above"):
        Hindcast(observed, observed.flops.min() / 2)


def test_the_whole_sweep_and_the_check_are_quick(observed):
    """Not timed, but counted: a plan of 200 resamples solves few batches, not thousands of fits one by one."""
    from contextwise.analysis.scaling import fitting

    calls = []
    original = fitting.minimise
    fitting.minimise = lambda *arguments: calls.append(len(arguments[3])) or original(*arguments)
    try:
        Analysis(observed, resamples=200)
    finally:
        fitting.minimise = original
    assert len(calls) < 30 and sum(calls) > 400
