"""Fits: known laws come back, and no general optimiser finds less on the same objective."""

import numpy as np
import pytest
from scipy.optimize import minimize

from contextwise_plan.scaling import fitting
from contextwise_plan.scaling.analysis import Analysis, data_of
from contextwise_plan.scaling.fitting import HUBER, Data, huber, minimise, refit, search
from contextwise_plan.scaling.forms import ONE_SIZE, SEVERAL_SIZES, Law
from contextwise_plan.scaling.observations import observations
from laws import drawn_points, one_size_loss

HARDER_ONE = next(form for form in ONE_SIZE if form.name == "harder")
HARDER = next(form for form in SEVERAL_SIZES if form.name == "harder")


def test_the_robust_loss_by_hand():
    assert huber(np.array([0.0, HUBER, -3 * HUBER])) == pytest.approx([0, HUBER**2 / 2, 2.5 * HUBER**2])


def test_a_known_law_of_one_size_comes_back():
    observed = observations(drawn_points(one_size_loss, {"nano": 900e3}))
    numbers = Law(HARDER_ONE, search(HARDER_ONE, data_of(observed))[0], observed.centre).printed()
    expected = {"E": 2.0, "C": 4.0, "gamma": 0.5, "A": 60.0, "alpha": 0.4, "b": 0.25}
    assert {name: float(value) for name, value in numbers.items()} == pytest.approx(expected, rel=1e-6)


def test_a_known_law_over_sizes_comes_back():
    observed = observations(drawn_points())
    numbers = Law(HARDER, search(HARDER, data_of(observed))[0], observed.centre).printed()
    expected = {"E": 1.5, "C": 4.0, "gamma": 0.5, "B": 30.0, "beta": 0.3, "A": 60.0, "alpha": 0.4, "b": 0.25}
    assert {name: float(value) for name, value in numbers.items()} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("form", SEVERAL_SIZES[1:], ids=lambda form: form.name)
def test_no_general_optimiser_gets_lower(form):
    """L-BFGS from the same fit and from fifteen other starts, on noisy points, one of them far off."""
    data = data_of(observations(drawn_points(run_noise=0.01, point_noise=0.005, count=6)))
    data.log_loss[5] += 0.3
    theta = search(form, data)[0]

    def objective(theta):
        loss, slopes = form.value_and_slope(theta[None], data.features)
        residual = np.log(loss[0]) - data.log_loss
        pull = np.clip(residual, -HUBER, HUBER)
        return huber(residual).sum(), pull @ (slopes[0] / loss[0][:, None])

    reached, slope = objective(theta)
    low, high = form.bounds
    inside = (theta > low) & (theta < high)
    assert np.abs(slope[inside]).max() < 1e-5  # a loss that is rough at the 1e-4 level by one point of 108
    draw = np.random.default_rng(0)
    starts = [theta, *(np.clip(theta + draw.normal(size=len(theta)) * 0.3, low, high) for _ in range(15))]
    for start in starts:
        other = minimize(
            objective, start, jac=True, method="L-BFGS-B", bounds=list(zip(low, high, strict=True)),
            options={"maxiter": 3000, "ftol": 1e-15, "gtol": 1e-10},
        )  # fmt: skip
        assert other.fun >= reached - 1e-9


def test_a_point_of_no_weight_is_as_if_it_were_not_there():
    observed = observations(drawn_points(one_size_loss, {"nano": 900e3}, run_noise=0.01, point_noise=0.01))
    data = data_of(observed)
    start = search(HARDER_ONE, data)[:1]
    kept = np.arange(len(observed)) % 5 > 0
    weighted = refit(HARDER_ONE, data, kept[None].astype(float), start)[0]
    fewer = Data({name: value[kept] for name, value in data.features.items()}, data.log_loss[kept])
    alone = refit(HARDER_ONE, fewer, np.ones((1, kept.sum())), start)[0]
    np.testing.assert_allclose(weighted, alone, rtol=1e-5, atol=1e-6)


def test_fits_side_by_side_do_not_touch_each_other():
    data = data_of(observations(drawn_points(run_noise=0.01, count=6)))
    draw = np.random.default_rng(3)
    losses = data.log_loss + 0.01 * draw.normal(size=(3, len(data.log_loss)))
    start = np.repeat(search(HARDER, data)[:1], 3, axis=0)
    together, values = minimise(HARDER, Data(data.features, losses), np.ones((1, losses.shape[1])), start)
    for i in range(3):
        alone, value = minimise(HARDER, Data(data.features, losses[i]), np.ones((1, losses.shape[1])), start[:1])
        np.testing.assert_allclose(together[i], alone[0], rtol=1e-8)
        assert values[i] == pytest.approx(value[0], rel=1e-12)


def test_numbers_stay_inside_their_bounds():
    """A loss that rises with the data asks for a power that is refused."""
    observed = observations(drawn_points(lambda l, n, d: 3.0 + 1e-8 * d))  # noqa: E741
    low, high = HARDER.bounds
    theta = search(HARDER, data_of(observed))
    assert (theta >= low).all() and (theta <= high).all()


@pytest.mark.long
def test_the_whole_sweep_is_quick(monkeypatch):
    """Not timed, but counted: a plan of 200 resamples solves few batches, not thousands of fits one by one."""
    calls, original = [], fitting.minimise
    monkeypatch.setattr(fitting, "minimise", lambda *args: calls.append(len(args[3])) or original(*args))
    Analysis(observations(drawn_points(run_noise=0.003, point_noise=0.001, count=20)), resamples=200)
    assert len(calls) < 30 and sum(calls) > 400
