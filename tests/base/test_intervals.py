"""Intervals of differences over seeds and documents: computed by hand, coverage with few seeds, edge cases."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from contextwise.base.estimates import Estimate
from contextwise.base.intervals import (
    crossed_interval,
    estimate,
    estimate_over_seeds,
    mean_estimate,
    per_seed,
    seed_interval,
    wilson,
)


def simulated(generator, shift, seeds, documents=80, seed_spread=0.02, document_spread=0.02):
    """(weights, block): differences in nats with effects of the seed, of the document, and of both."""
    weights = generator.integers(50, 2000, documents).astype(float)
    effects = generator.normal(0, seed_spread, (seeds, 1)) + generator.normal(
        0, document_spread, (1, documents)
    )
    return weights, weights * (shift + effects + generator.normal(0, 0.02, (seeds, documents)))


def test_one_seed_by_hand():
    weights = np.array([4.0, 2.0])
    result = estimate([np.array([[4.0, 5.0]])], weights)
    assert result.value == pytest.approx(1.5) and (result.low, result.high) == (1.0, 2.5)
    assert seed_interval([np.array([[4.0, 5.0]])], weights) is None
    assert crossed_interval([np.array([[4.0, 5.0]])], weights) is None


def test_one_document_allows_no_interval_over_documents_but_one_over_seeds():
    blocks, weights = [np.array([[1.0], [2.0], [3.0]])], np.ones(1)
    assert estimate(blocks, weights).low is None
    # Mean 2, standard error 1/√3, t(0.975; 2) = 4.303.
    assert seed_interval(blocks, weights) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5), abs=1e-3)


def test_the_difference_of_equal_models_is_exactly_zero():
    result = estimate([np.zeros((3, 10))], np.ones(10))
    assert (result.value, result.low, result.high) == (0, 0, 0)


def test_documents_without_tokens_change_nothing():
    generator = np.random.default_rng(0)
    weights, block = simulated(generator, 0.1, 3)
    padded, empty = np.append(weights, 0.0), np.append(block, np.zeros((3, 1)), axis=1)
    assert estimate([block], weights) == estimate([empty], padded)
    assert crossed_interval([block], weights) == crossed_interval([empty], padded)


@pytest.mark.parametrize("spreads", [(0.03, 0.01), (0.01, 0.2)], ids=["seeds dominate", "documents dominate"])
def test_three_seeds_cover_the_truth(spreads):
    generator, covered, trials = np.random.default_rng(3), 0, 300
    for _ in range(trials):
        weights, block = simulated(generator, -0.05, 3, seed_spread=spreads[0], document_spread=spreads[1])
        result = estimate([block], weights)
        covered += result.low <= -0.05 <= result.high
    # 95% has a standard deviation of 1.3% here; the crossed bootstrap covers 79% where the seeds dominate.
    assert covered / trials >= 0.90


def test_pairing_by_seed_and_document_narrows_the_interval():
    generator = np.random.default_rng(4)
    weights = generator.integers(50, 2000, 100).astype(float)
    base = weights * (4 + generator.normal(0, 0.5, (1, 100)) + generator.normal(0, 0.05, (3, 1)))
    better = base - weights * (0.02 + generator.normal(0, 0.01, (3, 100)))
    paired = estimate([better - base], weights)
    unpaired = estimate([better, -base], weights)
    assert paired.value == pytest.approx(unpaired.value)
    assert paired.high < 0
    assert unpaired.low < 0 < unpaired.high


def test_the_crossed_bootstrap_agrees_where_documents_dominate():
    weights, block = simulated(np.random.default_rng(5), 0.1, 4, seed_spread=0.0001, document_spread=0.3)
    low, high = crossed_interval([block], weights)
    result = estimate([block], weights)
    assert high - low == pytest.approx(result.high - result.low, rel=0.1)
    assert low < result.value < high


def test_the_crossed_bootstrap_handles_unpaired_groups_and_single_seeds():
    weights, block = simulated(np.random.default_rng(6), 0.1, 3)
    other = 2 * block[:2]
    low, high = crossed_interval([block, -other], weights)
    assert low < per_seed(block, weights).mean() - per_seed(other, weights).mean() < high
    alone = crossed_interval([block, -other[:1]], weights)
    assert alone is not None and alone[1] - alone[0] > 0


def test_seeds_alone():
    paired = estimate_over_seeds(np.array([1.0, 2.0, 3.0]), np.array([0.9, 1.9, 2.9]), paired=True)
    assert (paired.value, paired.low, paired.high) == pytest.approx((0.1, 0.1, 0.1))
    unpaired = estimate_over_seeds(np.array([1.0, 2.0, 3.0]), np.array([0.9, 1.9, 2.9]), paired=False)
    # Welch by hand: two variances of 1/3, four degrees of freedom, t = 2.776.
    assert unpaired.high - 0.1 == pytest.approx(2.776 * (2 / 3) ** 0.5, abs=1e-3)
    assert estimate_over_seeds(np.array([1.0]), np.array([2.0]), paired=True).low is None


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_the_interval_is_wilsons(counts: tuple[int, int]) -> None:
    total, right = counts
    got = wilson(right / total, total)
    expected = stats.binomtest(right, total).proportion_ci(0.95, method="wilson")
    assert (got.value, got.low, got.high) == pytest.approx(
        (right / total, expected.low, expected.high), abs=1e-12
    )


def test_the_interval_has_a_width_if_every_answer_is_wrong() -> None:
    z = 1.959964
    assert wilson(0.0, 10).high == pytest.approx(z**2 / (10 + z**2), abs=1e-6)  # by hand: 0.2775


def test_the_mean_lies_in_its_interval_which_shrinks_with_the_number_of_values():
    draw = np.random.default_rng(0)
    few, many = (mean_estimate(draw.normal(3.0, 1.0, size=n)) for n in (20, 2000))
    assert few.low < few.value < few.high
    assert many.high - many.low < few.high - few.low
    assert many.low < 3.0 < many.high
    assert mean_estimate(np.ones(5)) == Estimate(1.0)
