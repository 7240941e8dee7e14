"""The best size and context of a law: against brute force, and against Eq. 6 of intrinsic entropy."""

import numpy as np
import pytest

from contextwise_plan.scaling.forms import ONE_SIZE, SEVERAL_SIZES, Law
from contextwise_plan.scaling.observations import observations
from contextwise_plan.scaling.optimum import Cost, best_anywhere, best_context, best_of_sizes, measured_cost
from laws import SIZES, drawn_points, flops_per_token

HARDER = next(form for form in SEVERAL_SIZES if form.name == "harder")
TRUTH = np.array([np.log(1.5), np.log(4), -0.5, np.log(30), -0.3, np.log(60), -0.4, 0.25])
CHANGES = np.array([[0.0] * 8, [0, 0.3, 0.05, 0, 0.02, 0, -0.03, 0.1], [0, 0, 0, -0.2, 0, -0.1, 0, -0.05]])
ENSEMBLE = TRUTH + CHANGES


@pytest.fixture(scope="module")
def cost():
    return measured_cost(observations(drawn_points(count=3)), "flops")


def test_the_measured_cost_is_that_of_the_runs(cost):
    for parameters in SIZES.values():
        for context in (64, 500, 8192):
            assert cost.per_token(parameters, context) == pytest.approx(flops_per_token(parameters, context))


def test_between_and_beyond_sizes_the_cost_is_a_power_law():
    """12·l·(N/12)^(2/3) + 6·N is one in both parts, so it is met exactly."""
    cost = measured_cost(observations(drawn_points(count=3)), "flops")
    for parameters in (40e3, 500e3, 30e6):
        assert cost.per_token(parameters, 700) == pytest.approx(flops_per_token(parameters, 700))


def test_a_noisy_cost_stays_positive():
    points = drawn_points(sizes={"nano": 9e5}, count=3)
    falling = [type(p)(**{**vars(p), "seconds": p.tokens / (1 + p.context)}) for p in points]
    cost = measured_cost(observations(falling), "seconds")
    assert (cost.per_token(9e5, np.array([1, 64, 1e5])) > 0).all()


@pytest.mark.parametrize("budget", [3e13, 1e15, 2e16])
def test_the_best_context_is_that_of_a_fine_grid(cost, budget):
    law = Law(HARDER, ENSEMBLE, np.zeros(3))
    contexts = np.geomspace(32, 16384, 20_001)
    observed = best_context(law, cost, budget, 900e3, (32, 16384))
    for i, theta in enumerate(ENSEMBLE):
        losses = Law(HARDER, theta, np.zeros(3)).loss(contexts, 900e3, budget / cost.per_token(900e3, contexts))
        assert observed.context[i] == pytest.approx(contexts[losses.argmin()], rel=1e-3)
        assert observed.loss[i] == pytest.approx(losses.min(), abs=1e-9)
        assert observed.tokens[i] == pytest.approx(budget / cost.per_token(900e3, observed.context[i]))


@pytest.mark.parametrize("budget", [1e14, 1e16])
def test_the_best_pair_is_that_of_a_fine_grid(cost, budget):
    law = Law(HARDER, ENSEMBLE, np.zeros(3))
    observed = best_anywhere(law, cost, budget, (30e3, 1e8), (32, 16384))
    sizes, contexts = np.geomspace(30e3, 1e8, 801)[:, None], np.geomspace(32, 16384, 801)[None]
    for i, theta in enumerate(ENSEMBLE):
        losses = Law(HARDER, theta, np.zeros(3)).loss(contexts, sizes, budget / cost.per_token(sizes, contexts))
        row, column = np.unravel_index(losses.argmin(), losses.shape)
        assert observed.loss[i] <= losses.min() + 1e-12
        assert observed.parameters[i] == pytest.approx(sizes[row, 0], rel=0.03)
        assert observed.context[i] == pytest.approx(contexts[0, column], rel=0.03)


def test_the_best_of_given_sizes(cost):
    law = Law(HARDER, ENSEMBLE, np.zeros(3))
    sizes = np.array([150e3, 900e3, 2.9e6])
    observed = best_of_sizes(law, cost, 1e15, sizes, (32, 16384))
    each = np.stack([best_context(law, cost, 1e15, size, (32, 16384)).loss for size in sizes])
    np.testing.assert_allclose(observed.loss, each.min(0))
    np.testing.assert_allclose(observed.parameters, sizes[each.argmin(0)])


@pytest.mark.parametrize("tokens", [1e6, 1e8])
def test_with_the_tokens_given_eq_6_holds_at_the_optimum(tokens):
    """∂A/∂l = -A ln D (-∂α/∂l) + γ C D^α / l^(γ+1), here with α constant: l = (γ C D^α / (a b))^(1 / (b + γ))."""
    form = next(form for form in ONE_SIZE if form.name == "harder")
    C, gamma, a, alpha, b = 4.0, 0.5, 60.0, 0.4, 0.25
    law = Law(form, np.array([np.log(2), np.log(C), -gamma, np.log(a), -alpha, b]), np.zeros(3))
    free_context = Cost(np.array([1.0]), np.array([1.0]), np.array([1e-300]))
    context = float(best_context(law, free_context, tokens, 1.0, (1, 1e6)).context[0])
    assert context == pytest.approx((gamma * C * tokens**alpha / (a * b)) ** (1 / (b + gamma)), rel=1e-3)
    assert a * b * context ** (b - 1) == pytest.approx(gamma * C * tokens**alpha / context ** (gamma + 1), rel=1e-3)


def test_eq_6_with_a_power_that_depends_on_the_context():
    form = next(form for form in ONE_SIZE if form.name == "slower")
    C, gamma, a, alpha, b, delta, tokens = 4.0, 0.5, 60.0, 0.6, 0.1, 0.02, 1e7
    law = Law(form, np.array([np.log(2), np.log(C), -gamma, np.log(a), -alpha, b, delta]), np.zeros(3))
    free_context = Cost(np.array([1.0]), np.array([1.0]), np.array([1e-300]))
    l = float(best_context(law, free_context, tokens, 1.0, (1, 1e6)).context[0])  # noqa: E741
    A, slope_of_A = a * l**b, a * b * l ** (b - 1)
    slope_of_alpha = -delta / l
    right = -A * np.log(tokens) * -slope_of_alpha + gamma * C * tokens ** (alpha - delta * np.log(l)) / l ** (gamma + 1)
    assert slope_of_A == pytest.approx(right, rel=2e-3)
