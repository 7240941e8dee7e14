"""Trends over budgets, where they cross zero, and effective speed-ups, on losses whose answers are known."""

import numpy as np
import pytest

from contextwise.comparison.speedup import effective_speedup, trend

BUDGETS = np.array([1e6, 2e6, 4e6])


def reference(compute: np.ndarray) -> np.ndarray:
    return 4 - 0.3 * np.log2(compute / 1e6)


def test_a_head_start_that_is_lost_crosses_zero():
    draw = np.random.default_rng(0)
    truth = -0.04 + 0.03 * np.log2(BUDGETS / 1e6)  # zero at 2^(4/3) million
    result = trend(truth + draw.normal(0, 0.004, (8, 3)), BUDGETS)
    assert result is not None and result.crossing is not None
    assert result.slope.value == pytest.approx(0.03, abs=0.004) and result.slope.decided
    low, high = result.crossing.limits
    assert low < 2 ** (4 / 3) * 1e6 < high
    assert low < result.crossing.value < high < 2 * low


def test_parallel_differences_cross_nowhere():
    draw = np.random.default_rng(1)
    result = trend(-0.04 + draw.normal(0, 0.004, (8, 3)), BUDGETS)
    assert result is not None and result.crossing is None and not result.slope.decided


def test_one_budget_or_three_seeds_have_no_trend():
    assert trend(np.zeros((5, 1)), BUDGETS[:1]) is None
    assert trend(np.zeros((3, 3)), BUDGETS) is None


@pytest.mark.parametrize("budgets", [BUDGETS[:2], BUDGETS])
def test_the_speedup_is_the_compute_that_the_reference_needs(budgets):
    draw = np.random.default_rng(2)
    luck = draw.normal(0, 0.05, (8, 1))  # common to both arms of a seed
    own = reference(budgets) + luck + draw.normal(0, 0.002, (8, len(budgets)))
    losses = reference(1.25 * 2e6) + luck[:, 0] + draw.normal(0, 0.002, 8)
    result = effective_speedup(losses, 2e6, own, budgets)
    assert result is not None
    low, high = result.limits
    assert low < 1.25 < high and high - low < (0.1 if len(budgets) > 2 else 0.13)  # two do not show the bend
    slower = effective_speedup(losses, 4e6, own, budgets)
    assert slower is not None and slower.value == pytest.approx(result.value / 2)


@pytest.mark.long
def test_the_interval_of_the_speedup_holds_after_every_seed():
    draw, missed = np.random.default_rng(3), 0
    for _ in range(150):
        own = reference(BUDGETS) + draw.normal(0, 0.01, (10, 3))
        losses = reference(1.5e6 * 1.1) + draw.normal(0, 0.01, 10)
        results = [effective_speedup(losses[:n], 1.5e6, own[:n], BUDGETS) for n in range(4, 11)]
        missed += any(each is not None and not each.limits[0] <= 1.1 <= each.limits[1] for each in results)
    assert missed / 150 <= 0.06


@pytest.mark.parametrize("exponent", [0.15, 0.3, 0.5])
@pytest.mark.parametrize("budgets", [BUDGETS[[0, 2]], BUDGETS])
def test_the_interval_holds_where_each_doubling_gains_less(exponent, budgets):
    draw = np.random.default_rng(5)

    def law(compute: np.ndarray) -> np.ndarray:
        return 2 + 2 * (compute / 1e6) ** -exponent + draw.normal(0, 0.001, (8, np.size(compute)))

    for speedup in (0.8, 1.1, 1.5):
        result = effective_speedup(law(np.array([speedup * 2e6]))[:, 0], 2e6, law(budgets), budgets)
        assert result is not None and result.low < speedup < result.high < 1.2 * result.low


def test_a_loss_out_of_reach_has_no_speedup():
    own = reference(BUDGETS) + np.random.default_rng(4).normal(0, 0.01, (6, 3))
    assert effective_speedup(np.full(6, 1.0), 1e6, own, BUDGETS) is None


@pytest.mark.parametrize("spread", [0.0, 3e-4, 1e-3])
def test_an_interval_between_two_points_of_the_grid_is_found(spread):
    draw = np.random.default_rng(4)
    own = reference(BUDGETS) + spread * draw.normal(size=(20, 3))
    losses = reference(1.07 * 2e6) + spread * draw.normal(size=20)
    result = effective_speedup(losses, 2e6, own, BUDGETS)
    assert result is not None and result.limits[0] <= 1.07 <= result.limits[1] < 1.1
    truth = -0.04 + 0.03 * np.log2(BUDGETS / 1e6)
    crossing = trend(truth + spread * draw.normal(size=(20, 3)), BUDGETS)
    assert crossing is not None and crossing.crossing is not None
    assert crossing.crossing.limits[0] < 2 ** (4 / 3) * 1e6 < crossing.crossing.limits[1]
