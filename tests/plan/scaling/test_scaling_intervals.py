"""Held-out errors and intervals: exact where they can be, and honest about the truth nine times in ten."""

import numpy as np
import pytest

from contextwise_plan.scaling.analysis import LAW_ERROR, Analysis, compare_forms, data_of, not_significantly_worse
from contextwise_plan.scaling.fitting import Data, ensemble, search, widened_residuals
from contextwise_plan.scaling.forms import ONE_SIZE, SEVERAL_SIZES, Law
from contextwise_plan.scaling.observations import observations
from contextwise_plan.scaling.planning import Budget, make_plan
from laws import drawn_points, flops_per_token, one_size_loss

NANO = {"nano": 900e3}
FORMS = {form.name: form for form in SEVERAL_SIZES}


def test_the_error_on_an_unseen_run_is_that_of_a_fit_without_it():
    observed = observations(drawn_points(one_size_loss, NANO, run_noise=0.01, point_noise=0.003, count=6))
    score = next(score for score in compare_forms(observed) if score.form.name == "harder")
    data, errors = data_of(observed), []
    for run in range(len(observed.runs)):
        seen = observed.run != run
        without = Data({name: value[seen] for name, value in data.features.items()}, data.log_loss[seen])
        law = Law(score.form, search(score.form, without)[0], observed.centre)
        predicted = law.loss(observed.context[~seen], observed.parameters[~seen], observed.tokens[~seen])
        errors.append(np.sqrt(np.mean((np.log(predicted) - data.log_loss[~seen]) ** 2)))
    np.testing.assert_allclose(score.errors, errors, rtol=2e-3)
    assert score.error == pytest.approx(np.prod(errors) ** (1 / len(errors)), rel=2e-3)


@pytest.mark.long
def test_the_form_that_made_the_losses_is_chosen():
    observed = observations(drawn_points(run_noise=0.003, point_noise=0.002))
    scores = compare_forms(observed)
    assert not_significantly_worse(scores)[0].form.name == "harder"
    by_name = {score.form.name: score for score in scores}
    assert by_name["separate"].error > 4 * by_name["harder"].error
    assert by_name["slower"].fitted <= by_name["harder"].fitted  # it holds the other


@pytest.mark.parametrize("delta", [0.02, 0.0])
def test_an_exponent_that_falls_with_the_context_is_told_from_one_that_does_not(delta):
    """Eq. 4: A constant and an exponent that falls; or A(l) = a l^0.25 and one exponent."""

    def law(context, parameters, tokens):
        harder = 1.0 if delta else context**0.25
        return 2.0 + 4.0 / context**0.5 + 60.0 * harder / tokens ** (0.5 - delta * np.log(context / 64))

    observed = observations(drawn_points(law, NANO, run_noise=1e-4, point_noise=1e-4))
    analysis = Analysis(observed, resamples=20)
    assert analysis.chosen.form.name == ("falling" if delta else "harder")
    if delta:
        assert analysis.parameters()["delta"].value == pytest.approx(delta, rel=0.3)
        # The ensemble has the same law.
        at = (x[None] for x in (observed.context, observed.parameters, observed.tokens))
        predicted = np.log(analysis.ensemble.loss(*at)).mean(0)
        np.testing.assert_allclose(predicted, np.log(observed.loss), atol=2e-3)


def test_a_form_is_not_chosen_for_its_fit():
    """The richest form always fits best, and is not chosen where the plainer made the losses."""
    observed = observations(drawn_points(one_size_loss, NANO, run_noise=0.003, point_noise=0.002, seed=1))
    scores = compare_forms(observed)
    assert min(scores, key=lambda score: score.fitted).form.name == "slower"
    assert not_significantly_worse(scores)[0].form.name == "harder"


def test_residuals_are_widened_to_those_of_a_fit_without_the_run():
    """For the constant, (1 - H)^-1 is exact: the mean of the others."""
    draw = np.random.default_rng(0)
    run = np.repeat([0, 1, 2], [2, 5, 3])
    log_loss = 1 + 0.002 * draw.normal(size=10)
    constant = ONE_SIZE[0]
    data = Data({"1": np.ones(10)}, log_loss)
    theta = search(constant, data)
    wide = widened_residuals(constant, theta[0], data, run)
    expected = [log_loss[i] - log_loss[run != run[i]].mean() for i in range(10)]
    np.testing.assert_allclose(wide, expected, rtol=1e-6, atol=1e-12)


def test_a_resample_moves_whole_runs():
    """Luck that runs share widens the interval of the constant by far more than as much luck of points."""
    draw = np.random.default_rng(1)
    run = np.repeat(np.arange(12), 10)
    shared, single = 0.01 * draw.normal(size=12)[run], 0.01 * draw.normal(size=120)
    spreads = []
    for noise in (shared, single):
        data = Data({"1": np.ones(120)}, 1 + noise)
        spreads.append(ensemble(ONE_SIZE[0], search(ONE_SIZE[0], data), data, run, 400).std())
    assert spreads[0] == pytest.approx(shared[::10].std() / np.sqrt(11), rel=0.25)
    assert spreads[0] > 2 * spreads[1]


def covered(replicate, **settings):
    """Whether the intervals of the best context and of its loss hold the truth; the widths (a factor, nats)."""
    observed = observations(
        drawn_points(one_size_loss, NANO, run_noise=0.006, point_noise=0.002, count=10, seed=replicate)
    )
    budget = 4 * observed.flops.max()
    plan = make_plan(Analysis(observed, seed=replicate, **settings), Budget("flops", budget, ""))
    contexts = np.geomspace(32, 8 * 2048, 4000)
    losses = one_size_loss(contexts, 900e3, budget / flops_per_token(900e3, contexts))
    best = plan.best
    return (
        best.context.low <= contexts[losses.argmin()] <= best.context.high,
        best.loss.low <= losses.min() <= best.loss.high,
        best.context.high / best.context.low,
        best.loss.high - best.loss.low,
    )


@pytest.mark.slow
def test_the_intervals_hold_the_truth_about_nine_times_in_ten():
    """Of 60 sweeps with lucky runs 54 are expected; fewer than 47 happen once in 500 times if it is nine in ten.

    The budget is 29 times the largest that all contexts reached, where the power of the growth alone is a factor of four.
    """
    rows = np.array([covered(replicate, resamples=40) for replicate in range(60)], dtype=float)
    context, loss = rows[:, :2].sum(0)
    assert context >= 47 and loss >= 47
    # Not by being endless: the budget is beyond the sweep, and still the intervals say something. That of the loss holds the
    # law's own error, 0.13 of ln L from end to end at this reach.
    assert np.median(rows[:, 2]) < 6 and np.median(rows[:, 3]) < 0.15 + 0.13 * 4


@pytest.fixture(scope="module")
def lucky():
    """The analysis of a sweep whose runs have luck."""
    return Analysis(observations(drawn_points(run_noise=0.006, count=8)), resamples=200)


def test_a_law_is_less_certain_beyond_its_sweep(lucky):
    """Within the sweep nothing is added; beyond it, the variances add up, by ln of the reach, and the middle stays."""
    analysis = lucky
    zero = np.zeros(200)
    assert (analysis.beyond(zero, 0.5) == 0).all() and (analysis.beyond(zero, 1.0) == 0).all()
    near, far = analysis.beyond(zero, np.e), analysis.beyond(zero, np.e**2)
    np.testing.assert_allclose(far, 2 * near)
    assert abs(near.mean()) < 1e-12 and near.std() == pytest.approx(LAW_ERROR, rel=0.02)
    assert analysis.beyond(np.zeros((200, 3)), np.e).shape == (200, 3)


@pytest.mark.long
def test_the_loss_of_a_plan_is_less_certain_the_farther_it_is():
    """The interval of the loss is at least about as wide as that of the law's own error: 1.64 deviations of ln L each way."""
    analysis = Analysis(observations(drawn_points(count=8)), resamples=100)
    for reach in (2, 8):
        best = make_plan(analysis, Budget("flops", reach * analysis.observed.flops.max(), ""), far=True).best
        low, high = best.loss.limits
        assert np.log(high / low) > 0.9 * 2 * 1.64 * LAW_ERROR * np.log(reach)
