"""The check: what is hidden stays hidden, and a true law predicts it."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks.harness import RESULTS

from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate
from contextwise_plan.optimum import Landscape, cells
from contextwise_plan.scaling.analysis import Analysis
from contextwise_plan.scaling.hindcast import HiddenRun, Hindcast
from contextwise_plan.scaling.observations import budgets_of, common_budgets, measured, observations, read_table
from contextwise_plan.scaling.trend import METHOD, fit_trend
from contextwise_plan.tables import _one_sided
from contextwise_plan.tracks import NEARLY, tracks
from laws import CONTEXTS, drawn_points, flops_per_token, true_loss


@pytest.fixture(scope="module")
def observed():
    return observations(drawn_points(run_noise=0.003, point_noise=0.001, count=20))


@pytest.mark.long
def test_the_law_sees_nothing_of_what_is_hidden(observed):
    """Hidden losses may be anything: the fit and its predictions stay the same to the last bit."""
    above = 2e14
    seen = observed.flops <= above * NEARLY
    points = [p if kept else dataclasses.replace(p, loss=7.0) for p, kept in zip(observed.points, seen, strict=True)]
    changed = observations(points)
    one, other = Hindcast(observed, above, resamples=30), Hindcast(changed, above, resamples=30)
    assert one.analysis.law.theta.tolist() == other.analysis.law.theta.tolist()
    assert [run.predicted for run in one.runs] == [run.predicted for run in other.runs]
    assert [row.before for row in one.optima] == [row.before for row in other.optima]
    assert other.error > 0.5 > one.error
    assert one.shown == seen.sum() and one.hidden == (~seen).sum()


@pytest.fixture(scope="module")
def books():
    """Finished runs of nano with one seed and seven contexts, at five budgets that are equal to half a step."""
    every = read_table(RESULTS / "sweeps" / "gpt2-books.json")
    return every.where(np.array([point.size == "nano" and point.seed == 0 for point in every.points]))


@pytest.mark.long
def test_the_best_context_before_is_read_from_what_was_shown(books):
    """Above 8e11 FLOPs losses of 256 tokens are the lowest by far; below, the best is 8 tokens. Budgets are not split."""
    assert books.flops[books.flops < 1e12].max() > 8e11 > books.flops[books.flops > 6e11].min()
    low = (books.flops > 8.5e11) & (books.context == 256)
    points = [dataclasses.replace(p, loss=p.loss / 5) if x else p for p, x in zip(books.points, low, strict=True)]
    check = Hindcast(observations(points), 8e11, resamples=8)
    assert (check.shown, check.hidden) == (21, 14)
    assert [(row.before, row.measured) for row in check.optima] == [(8, 256)]


@pytest.mark.long
def test_a_check_leaves_enough_for_a_law(books):
    check = Hindcast(books, resamples=8)
    assert (check.shown, check.hidden) == (21, 14)
    for count, error in (
        (3, "needs 4 budgets at least, 3 to show .* has 3; give"),
        (2, "is 2 .the median., and 3 at least"),
    ):
        few = books.where(books.flops < budgets_of(books)[count])
        with pytest.raises(DataError, match=error):
            Hindcast(few)


def test_half_a_step_is_that_of_the_contexts_measured():
    """Contexts of a factor 4, of which half a step is 2: an interval from 1.9 times the best one reaches it."""
    points = drawn_points(sizes={"nano": 900e3}, contexts=(24, 96, 384, 1536), count=6)
    above = float(common_budgets(observations(points), 0)[-1] / 2)
    best = [point.flops > above and point.context == 96 for point in points]
    points = [dataclasses.replace(p, loss=p.loss / 2) if x else p for p, x in zip(points, best, strict=True)]
    (row,) = Hindcast(observations(points), above, resamples=2).optima
    assert row.measured == 96 and np.sqrt(2) < row.predicted.limits[0] / 96 < 2 and row.inside


@pytest.mark.long
def test_what_was_hidden_is_predicted(observed):
    check = Hindcast(observed, resamples=100)
    assert check.beyond > 10
    assert np.mean([run.inside for run in check.runs]) >= 0.7
    assert check.error < 0.02 < check.unchanged / 3
    assert check.optima and all(row.inside for row in check.optima)
    for row in check.optima:
        assert (
            row.measured in CONTEXTS and row.measured not in row.within_noise and set(row.within_noise) < set(CONTEXTS)
        )


@pytest.mark.long
def test_the_best_context_is_that_of_the_trend_of_what_was_shown(observed):
    check = Hindcast(observed, resamples=30)
    trend = fit_trend(check.analysis.observed)
    sizes = dict(zip(observed.sizes, observed.size_parameters, strict=True))
    assert check.optima
    for row in check.optima:
        followed = np.clip(trend.context(row.budget, sizes[row.size]), min(CONTEXTS), max(CONTEXTS))
        assert row.predicted.value == pytest.approx(float(followed)) and row.predicted.method == METHOD


@pytest.mark.long
def test_without_noise_predicted_is_measured():
    check = Hindcast(observations(drawn_points(count=24)), resamples=30)
    for run in check.runs:
        assert run.predicted.value == pytest.approx(run.measured, rel=1e-5)
    for row in check.optima:
        # Between two points of a run the measured loss is interpolated.
        assert row.predicted_loss.value == pytest.approx(row.measured_loss, rel=2e-3)


@pytest.mark.long
def test_contexts_within_the_noise_are_those_of_the_page(observed):
    landscape = Landscape(observed.points, "flops", observed.planned)
    for row in Hindcast(observed, resamples=10).optima:
        step = int(np.abs(np.log(landscape.budgets / row.budget)).argmin())
        page = landscape.optima[step][row.size]
        assert (page.cell.context, page.within_noise) == (row.measured, row.within_noise)


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


@pytest.mark.long
def test_the_whole_sweep_and_the_check_are_quick(observed):
    """Not timed, but counted: a plan of 200 resamples solves few batches, not thousands of fits one by one."""
    from contextwise_plan.scaling import fitting

    calls = []
    original = fitting.minimise
    fitting.minimise = lambda *arguments: calls.append(len(arguments[3])) or original(*arguments)
    try:
        Analysis(observed, resamples=200)
    finally:
        fitting.minimise = original
    assert len(calls) < 30 and sum(calls) > 400


def test_losses_that_are_all_predicted_too_low_are_said():
    def run(size, measured):
        return HiddenRun("r", size, 64, 1e12, Estimate(3.0, 2.9, 3.1), measured)

    sides = {"pico": [3.03, 3.05, 3.02, 3.04], "nano": [2.9, 3.1, 3.2, 3.2], "tiny": [3.1, 3.1, 3.1]}
    check = SimpleNamespace(runs=[run(size, loss) for size, losses in sides.items() for loss in losses])
    (sentence,) = _one_sided(check)
    assert sentence.startswith("All 4 losses of pico are predicted too low, by 0.66% to 1.64%")
