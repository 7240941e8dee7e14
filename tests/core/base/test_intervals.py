"""Intervals of differences over seeds and documents: computed by hand, coverage with few seeds, edge cases."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from contextwise.base.estimates import Estimate, joint_freedom
from contextwise.base.intervals import (
    bootstrap_estimate,
    correlation_estimate,
    estimate,
    estimate_over_seeds,
    leave_one_out,
    mean_correlation,
    mean_estimate,
    plus_minus,
    ratio_difference,
    ratios,
    resampled_ratios,
    seed_interval,
    shared_variance,
    student_t,
    wilson,
    with_seeds,
    within_groups,
)


def simulated(generator, shift, seeds, documents=80, seed_spread=0.02, document_spread=0.02):
    """(weights, block): differences in nats with effects of the seed, of the document, and of both."""
    weights = generator.integers(50, 2000, documents).astype(float)
    effects = generator.normal(0, seed_spread, (seeds, 1)) + generator.normal(0, document_spread, (1, documents))
    return weights, weights * (shift + effects + generator.normal(0, 0.02, (seeds, documents)))


def test_one_seed_by_hand():
    weights = np.array([4.0, 2.0])
    result = estimate([np.array([[4.0, 5.0]])], weights)
    # Without the one, 5/2; without the other, 4/4: variance (1² + 0.5²) / 2. Effective documents 36/20, so 1 degree of freedom.
    half = 12.706 * 0.625**0.5
    assert (result.value, result.low, result.high) == pytest.approx((1.5, 1.5 - half, 1.5 + half), abs=1e-3)
    assert (result.method, result.documents, result.seeds) == ("t", 2, None)
    assert seed_interval([np.array([[4.0, 5.0]])], weights) is None


def test_variance_within_groups_by_hand():
    assert within_groups([[1.0], []]) is None
    assert within_groups([[1.0, 3.0], [7.0], [10.0, 14.0]]) == (pytest.approx((2 + 8) / 2), 2)


def test_documents_of_equal_size_have_the_t_interval_of_a_mean():
    values = np.array([0.1, 0.4, 0.2, 0.3, 0.0])
    # Mean 0.2, standard deviation 0.1581, standard error 0.0707, t(0.975; 4) = 2.776.
    result = estimate([7 * values[None]], np.full(5, 7.0))
    assert (result.value, result.low, result.high) == pytest.approx((0.2, 0.00368, 0.39632), abs=1e-4)
    ours, theirs = mean_estimate(values), stats.ttest_1samp(values, 0).confidence_interval()
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert (result.low, result.high) == pytest.approx((ours.low, ours.high))


def test_one_document_with_most_of_the_text_leaves_few_degrees_of_freedom():
    values, sizes = np.linspace(0, 1, 20), np.ones(20)
    equal = ratios(values, {"size": sizes})["size"]
    sizes[0] = 60
    unequal = ratios(values * sizes, {"size": sizes})["size"]
    # (79² / 3619) - 1 = 0.72, so one degree of freedom instead of 19.
    errors = [leave_one_out(values * s, s) - (values * s).sum() / s.sum() for s in (np.ones(20), sizes)]
    halves = [t * (19 / 20 * (e**2).sum()) ** 0.5 for t, e in zip((2.093, 12.706), errors, strict=True)]
    assert [equal.high - equal.value, unequal.high - unequal.value] == pytest.approx(halves, rel=1e-3)


def test_seeds_and_documents_add_their_variances_without_what_both_contain():
    """Three documents of equal size and two seeds, by hand."""
    block = np.array([[1.0, 2.0, 6.0], [3.0, 4.0, 5.0]])
    result = estimate([block], np.ones(3))
    # Means of the documents 2, 3, 5.5: variance 3.25, over three 1.0833. Of the seeds 3 and 4: variance 1/2, over two 1/4.
    # Seed by seed the documents have the variances 7 and 1, over three 4/3 on average: the mean of two lost 4/3 - 1.0833.
    assert shared_variance(block, np.ones(3)) == pytest.approx(0.25)
    assert result.parts == (pytest.approx((13 / 12, 2)), pytest.approx((0.25, 1)))
    # Quantiles over that of the normal distribution: 4.3027 / 1.95996 and 12.7062 / 1.95996, to the power 1.25.
    weighted = 13 / 12 * 2.19527**1.25, 0.25 * 6.48289**1.25
    freedom = sum(weighted) ** 2 / (weighted[0] ** 2 / 2 + weighted[1] ** 2)
    assert result.freedom == pytest.approx(freedom, rel=1e-4)
    assert result.high - result.value == pytest.approx(student_t(freedom) * (13 / 12) ** 0.5, rel=1e-4)
    assert result.basis == "t over 2 seeds and 3 documents"


def test_what_both_variances_contain_is_found_on_average():
    """Documents, seeds, and both together, with the variances 1, 4 and 9."""
    draw, found = np.random.default_rng(3), []
    for _ in range(2000):
        both = draw.normal(0, 1, (1, 10)) + draw.normal(0, 2, (4, 1)) + draw.normal(0, 3, (4, 10))
        found.append(shared_variance(both, np.ones(10)))
    assert np.mean(found) == pytest.approx(9 / 40, rel=0.03)


def test_the_seeds_part_is_added_to_any_interval_over_documents():
    over_documents = Estimate(0.2, 0.1, 0.25, method="bootstrap", documents=9, freedom=math.inf)
    both = with_seeds(over_documents, np.array([0.19, 0.21]))
    normal, t = 1.959964, 12.706205
    for limit, side in ((both.low, 0.1), (both.high, 0.05)):
        documents, seeds = (side / normal) ** 2, 0.01**2
        weighted = seeds * (t / normal) ** 1.25
        freedom = (documents + weighted) ** 2 / weighted**2
        assert abs(limit - 0.2) == pytest.approx(student_t(freedom) * (documents + seeds) ** 0.5, rel=1e-5)
    assert (both.value, both.documents, both.seeds) == (0.2, 9, 2)
    assert with_seeds(over_documents, np.array([0.2])) == over_documents
    assert not with_seeds(Estimate(0.2), np.array([0.19, 0.21])).has_interval


def test_a_difference_of_ratios_is_paired_by_document():
    sums, sizes = np.array([4.0, 5.0, 9.0]), np.array([4.0, 2.0, 3.0])
    same = ratio_difference(np.array([sums, sizes]), np.array([3 * sums, 3 * sizes]))
    assert (same.value, same.low, same.high) == pytest.approx((0, 0, 0))
    shifted = ratio_difference(np.array([sums + sizes, sizes]), np.array([sums, sizes]))
    assert (shifted.value, shifted.low, shifted.high) == pytest.approx((1, 1, 1))


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


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("documents", [2, 6, 20])
@pytest.mark.parametrize("seed_spread", [0.0, 0.05])
def test_intervals_cover_the_truth(seeds, documents, seed_spread):
    """Documents of unequal sizes; percentile bootstraps cover 50% with 2 documents, and one seed knows nothing of others."""
    if seeds == 1 and seed_spread:
        pytest.skip("one seed's interval is over documents alone")
    generator, covered, trials = np.random.default_rng([seeds, documents]), 0, 1000
    for _ in range(trials):
        weights, block = simulated(generator, -0.05, seeds, documents, seed_spread)
        result = estimate([block], weights)
        covered += result.low <= -0.05 <= result.high
    assert covered / trials >= 0.93  # 95% has a standard deviation of 0.7% here


@pytest.mark.long
def test_models_that_are_equal_are_rarely_told_apart_and_never_on_five_documents():
    generator, decided = np.random.default_rng(8), {2: 0, 5: 0, 6: 0, 20: 0}
    for documents in decided:
        for _ in range(500):
            weights, block = simulated(generator, 0.0, 2, documents, 0.01)
            decided[documents] += estimate([block], weights).decided
    assert decided[2] == decided[5] == 0
    assert decided[6] <= 35 and decided[20] <= 35  # 5% is 25, with a standard deviation of 5


def test_five_documents_have_an_interval_but_no_verdict():
    values = np.array([1.0, 1.1, 0.9, 1.0, 1.05, 0.95])
    five, six = (estimate([values[None, :n]], np.ones(n)) for n in (5, 6))
    assert five.low > 0.5 and not five.decided and five.above(0.0) is None
    assert five.too_few == "5 documents allow no verdict, which takes 6 or more"
    assert six.decided and six.above(0.0) and six.too_few == ""
    assert not Estimate.from_dict(five.to_dict()).decided and Estimate.from_dict(six.to_dict()).decided
    assert six.to_dict() == {"value": six.value, "low": six.low, "high": six.high, "method": "t", "documents": 6}


def test_bootstrap_intervals_are_those_of_t_for_a_mean():
    values = np.random.default_rng(9).normal(size=12)
    drawn = resampled_ratios(values[:, None], np.ones(12))[:, 0]
    result, exact = bootstrap_estimate(values.mean(), drawn, 12), mean_estimate(values)
    assert result.method == "bootstrap" and result.documents == 12
    assert result.high - result.low == pytest.approx(exact.high - exact.low, rel=0.1)
    plain = np.subtract(*np.quantile(drawn, [0.975, 0.025]))
    assert result.high - result.low > 1.1 * plain
    assert bootstrap_estimate(1.0, drawn, 5) == Estimate(1.0)


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


def test_seeds_alone():
    paired = estimate_over_seeds(np.array([1.0, 2.0, 3.0]), np.array([0.9, 1.9, 2.9]), paired=True)
    assert (paired.value, paired.low, paired.high) == pytest.approx((0.1, 0.1, 0.1))
    unpaired = estimate_over_seeds(np.array([1.0, 2.0, 3.0]), np.array([0.9, 1.9, 2.9]), paired=False)
    # Welch by hand: two variances of 1/3, four degrees of freedom, t = 2.776.
    assert unpaired.high - 0.1 == pytest.approx(2.776 * (2 / 3) ** 0.5, abs=1e-3)
    assert unpaired.at(0.99).high - 0.1 == pytest.approx(stats.t.ppf(0.995, 4) * (2 / 3) ** 0.5)
    assert estimate_over_seeds(np.array([1.0]), np.array([2.0]), paired=True).low is None


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_the_interval_is_wilsons(counts: tuple[int, int]) -> None:
    total, right = counts
    got = wilson(right / total, total)
    expected = stats.binomtest(right, total).proportion_ci(0.95, method="wilson")
    assert (got.value, got.low, got.high) == pytest.approx((right / total, expected.low, expected.high), abs=1e-12)


def test_the_interval_has_a_width_if_every_answer_is_wrong() -> None:
    z = 1.959964
    assert wilson(0.0, 10).high == pytest.approx(z**2 / (10 + z**2), abs=1e-6)  # by hand: 0.2775
    assert (wilson(0.0, 10).low, wilson(1.0, 10).high, wilson(0.0, 3).low) == (0, 1, 0)  # to the last bit


def test_the_mean_lies_in_its_interval_which_shrinks_with_the_number_of_values():
    draw = np.random.default_rng(0)
    few, many = (mean_estimate(draw.normal(3.0, 1.0, size=n)) for n in (20, 2000))
    assert few.low < few.value < few.high
    assert many.high - many.low < few.high - few.low
    assert many.low < 3.0 < many.high
    assert mean_estimate(np.ones(5)) == Estimate(1.0)


def test_an_interval_at_another_confidence_is_students():
    values = np.random.default_rng(1).normal(size=7)
    expected = stats.t.interval(0.99, 6, values.mean(), stats.sem(values))
    assert mean_estimate(values).at(0.99).limits == pytest.approx(expected)
    assert mean_estimate(values).at(0.99).at(0.95) == mean_estimate(values)
    # Without a count: the normal distribution's, by hand 2.5758 / 1.95996.
    assert (-Estimate(1.0, 0.0, 2.0)).at(0.99).limits == pytest.approx((-1 - 1.3142, -1 + 1.3142), abs=1e-4)
    assert Estimate(1.0).at(0.99) == Estimate(1.0)


def test_an_interval_in_a_file_is_as_wide_at_another_confidence():
    """Two documents hold most of the text, seeds are few, a variance is known exactly: what JSON keeps is enough for each."""
    draw = np.random.default_rng(2)
    sizes = np.array([100.0] * 20 + [20_000.0] * 2)
    alone = ratios(sizes * draw.normal(3, 0.1, 22), {"": sizes})[""]
    several = estimate([draw.normal(3, 0.1, (3, 22)) * sizes], sizes)
    exact = with_seeds(plus_minus(1.0, 0.5, documents=22, freedom=math.inf), np.array([0.9, 1.1]))
    assert alone.freedom < 2 and len(several.parts) == len(exact.parts) == 2
    for known in (alone, several, exact, mean_estimate(draw.normal(size=4)), exact.at(0.9)):
        again = Estimate.from_dict(json.loads(json.dumps(known.to_dict(), allow_nan=False)))
        assert (again, again.confidence) == (known, known.confidence)
        assert again.at(0.995).limits == pytest.approx(known.at(0.995).limits)


def test_more_confidence_stays_inside_the_range_of_a_correlation():
    """The interval is widened on Fisher's scale, by hand tanh(arctanh r ± z / √(n - 3)), and mirrored with the sign."""
    middle, half = np.arctanh(0.9985), 2.5758293 / 2
    wide = correlation_estimate(0.9985, 7).at(0.99)
    assert wide.limits == pytest.approx((np.tanh(middle - half), np.tanh(middle + half)), abs=1e-9)
    assert (-wide).limits == (-correlation_estimate(0.9985, 7)).at(0.99).limits
    seeds = mean_correlation([0.9996, 0.9990, 0.9980])
    assert -1 <= seeds.at(0.9999).low < seeds.low and seeds.high < seeds.at(0.9999).high <= 1
    share = mean_estimate(np.array([1.0, 2.0, 4.0]))
    assert share.scaled(100).at(0.99).limits == pytest.approx(tuple(100 * limit for limit in share.at(0.99).limits))


def test_more_confidence_weighs_each_part_by_its_own_freedom():
    """Two seeds and 61 documents of equal variance, by hand at 99%."""
    over_documents = plus_minus(0.0, student_t(60), documents=61, freedom=60.0)
    both = with_seeds(over_documents, np.array([-1.0, 1.0]))  # their mean has the variance 1
    normal = stats.norm.ppf(0.995)
    weights = [(stats.t.ppf(0.995, freedom) / normal) ** 1.25 for freedom in (60, 1)]
    freedom = sum(weights) ** 2 / (weights[0] ** 2 / 60 + weights[1] ** 2)
    assert both.at(0.99).high == pytest.approx(stats.t.ppf(0.995, freedom) * 2**0.5)
    assert both.at(0.99).at(0.95).high == pytest.approx(both.high)


@pytest.mark.parametrize(
    ("seeds", "least", "most"), [(1, 0.939, 0.976), (2, 0.941, 0.963), (3, 0.944, 0.960), (11, 0.945, 0.956)]
)
@pytest.mark.parametrize("documents", [5, 19, 199])
def test_the_interval_of_a_sum_of_variances_covers_the_truth_whichever_is_larger(seeds, documents, least, most):
    """Exact coverage. Given the ratio of the two estimates, the value over their sum has Student's t with all their freedom."""
    chances = (np.arange(500) + 0.5) / 500
    shares = stats.beta.ppf(chances, seeds / 2, documents / 2)  # of the first in the sum of squares
    freedom = seeds + documents
    for ratio in (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0):
        variances = ratio * shares / seeds, (1 - ratio) * (1 - shares) / documents
        half = [
            student_t(joint_freedom([(a, seeds), (b, documents)])) * (a + b) ** 0.5
            for a, b in zip(*variances, strict=True)
        ]
        covered = np.mean(2 * stats.t.cdf(np.array(half) * freedom**0.5, freedom) - 1)
        assert least <= covered <= most


def test_a_part_that_does_not_vary_leaves_the_freedom_of_the_others():
    assert joint_freedom([(1.0, math.inf), (0.0, 2)]) == math.inf
    assert joint_freedom([(1.0, 7), (0.0, 2)]) == pytest.approx(7)
    assert joint_freedom([(0.0, 7), (0.0, 2)]) == 2


def test_a_scaled_estimate_has_scaled_parts():
    block = np.random.default_rng(4).normal(size=(3, 9))
    estimated = estimate([block], np.ones(9))
    scaled = estimated.scaled(100)
    assert [variance for variance, _ in scaled.parts] == pytest.approx([1e4 * each for each, _ in estimated.parts])
    both, once = with_seeds(scaled, np.array([1.0, 2.0])), with_seeds(estimated, np.array([0.01, 0.02]))
    assert both.limits == pytest.approx(once.scaled(100).limits)
    assert not with_seeds(estimated, np.array([0.1, math.nan])).above(0.0)


def test_more_confidence_over_seeds_and_documents_costs_what_welch_says():
    """Few seeds that hardly vary leave the documents' degrees of freedom; ones that vary a lot leave their own."""
    weights, even = np.ones(60), np.random.default_rng(2).normal(0, 1, 60)
    calm, wild = (even + spread * np.array([[-1.0], [0.0], [1.0]]) for spread in (0.001, 10.0))
    before = [estimate([block], weights) for block in (calm, wild)]
    growth = [(each.at(0.99).high - each.value) / (each.high - each.value) for each in before]
    assert growth == pytest.approx([stats.t.ppf(0.995, f) / stats.t.ppf(0.975, f) for f in (59, 2)], rel=1e-2)
    over_documents = mean_estimate(even)
    added = with_seeds(over_documents, calm.mean(axis=1))
    assert added.degrees_of_freedom == pytest.approx(over_documents.degrees_of_freedom, rel=1e-2)
