"""The anytime-valid interval of a mean paired difference: its definition, its invariances, its coverage, and the decisions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate
from contextwise.comparison.sequential import (
    PRIOR_VARIANCE,
    decide,
    discoveries,
    document_half_width,
    evidence,
    half_widths,
    looks,
    seeds_to_decide,
    sequence_limits,
    simultaneous,
)

ONE_DOCUMENT = np.ones(1)


def bayes_factor(differences: np.ndarray, mean: float) -> float:
    """Of the effect size N(0, g) against 0, by integrating the noncentral t density over the prior."""
    n = len(differences)
    t = math.sqrt(n) * (differences.mean() - mean) / differences.std(ddof=1)
    scale = math.sqrt(PRIOR_VARIANCE)

    def weighted(effect: float) -> float:
        return stats.nct.pdf(t, n - 1, math.sqrt(n) * effect) * stats.norm.pdf(effect, scale=scale)

    total, _ = integrate.quad(weighted, -30, 30, points=[t / math.sqrt(n)], limit=400)
    return total / stats.t.pdf(t, n - 1)


@pytest.mark.parametrize("seeds", [4, 7, 15])
def test_the_evidence_is_the_bayes_factor(seeds):
    differences = np.random.default_rng(seeds).normal(0.02, 0.01, seeds)
    last = looks(differences[:, None], ONE_DOCUMENT)[-1]
    assert last.evidence == pytest.approx(bayes_factor(differences, 0.0), rel=1e-4)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_the_first_interval_is_the_t_interval_of_the_error_that_it_spends(confidence):
    spent = (1 - confidence) * (1 - (3 / 4) ** 1.5)
    assert half_widths(4, confidence)[-1] == pytest.approx(stats.t.ppf(1 - spent / 2, 3) / 2, rel=1e-3)


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_first_seeds_miss_as_often_as_they_may(confidence):
    """The share of paths that ever left the interval, after each seed, is the error that was to be spent by then."""
    draw, missed, paths = np.random.default_rng(4), np.zeros(20), 0
    for _ in range(20):
        means, halves = sequence_limits(draw.normal(size=(10_000, 20)), confidence)
        missed += np.maximum.accumulate(np.abs(means) > halves, axis=1).sum(axis=0)
        paths += len(means)
    spent = (1 - confidence) * (1 - (3 / np.arange(4, 21)) ** 1.5)
    scatter = np.sqrt(spent / paths)
    assert (np.abs(missed[3:] / paths - spent) < 4 * scatter + 0.01 * spent).all()


def test_three_seeds_allow_no_interval_and_each_further_one_narrows_it():
    widths = half_widths(64)
    assert np.isinf(widths[:3]).all() and np.isfinite(widths[3:]).all()
    assert (np.diff(widths[3:]) < 0).all()
    t_interval = stats.t.ppf(0.975, np.arange(3, 64)) / np.sqrt(np.arange(4, 65))
    assert (widths[3:] > t_interval).all()
    assert (half_widths(64, 0.99)[3:] > widths[3:]).all()


@pytest.mark.parametrize("confidence", [0.5, 0.95, 1 - 1e-6])
def test_the_interval_goes_on_after_the_exact_looks(confidence):
    widths = half_widths(1000, confidence)
    assert np.isfinite(widths[-1]) and (np.diff(widths[20:64]) < 0).all() and (np.diff(widths[64:]) < 0).all()
    assert widths[-1] < widths[63] < widths[64]
    assert widths[:30] == pytest.approx(half_widths(30, confidence))


@given(st.integers(0, 2**31), st.floats(0.001, 1000), st.floats(-100, 100))
def test_units_and_offsets_change_nothing(seed, scale, shift):
    differences = np.random.default_rng(seed).normal(size=(3, 12))
    means, halves = sequence_limits(differences)
    scaled_means, scaled_halves = sequence_limits(scale * differences + shift)
    assert scaled_means == pytest.approx(scale * means + shift, rel=1e-6, abs=1e-6 * scale)
    assert scaled_halves == pytest.approx(scale * halves, rel=1e-6)


@pytest.mark.parametrize("heavy", [False, True])
def test_looking_after_every_seed_decides_falsely_in_few_cases(heavy):
    draw = np.random.default_rng(3)
    differences = draw.standard_t(3, (4000, 30)) if heavy else draw.normal(size=(4000, 30))
    means, halves = sequence_limits(differences)
    assert 0.02 < (np.abs(means) > halves).any(axis=1).mean() <= 0.055  # 5% of 4,000 paths have a deviation of 0.3%


def test_looks_are_those_of_the_text_and_of_any_text():
    draw = np.random.default_rng(5)
    tokens = draw.integers(100, 1000, 12).astype(float)
    own = draw.normal(0.05, 0.02, 12)
    differences = (own + draw.normal(0, 0.003, (6, 1))) * tokens
    path = looks(differences, tokens)
    by_seed = differences.sum(axis=1) / tokens.sum()
    assert [look.seeds for look in path] == [1, 2, 3, 4, 5, 6]
    assert not path[2].fixed.has_interval and path[3].fixed.has_interval
    last = path[-1]
    assert last.fixed.value == last.random.value == pytest.approx(by_seed.mean())
    fixed, random = (estimate.limits[1] - estimate.value for estimate in (last.fixed, last.random))
    assert fixed == pytest.approx(half_widths(6)[-1] * by_seed.std(ddof=1))
    over_documents = document_half_width(differences, tokens)
    assert max(fixed, over_documents) < random < math.hypot(fixed, over_documents)


def test_where_one_source_alone_varies_the_interval_is_its_own():
    tokens, draw = np.full(12, 100.0), np.random.default_rng(6)
    alike = looks(draw.normal(0.05, 0.01, (6, 1)) * tokens, tokens)[-1]
    assert alike.random.limits == pytest.approx(alike.fixed.limits)
    differences = draw.normal(0.05, 0.01, 12) * tokens + draw.normal(0, 2e-5, (6, 1)) * tokens
    random = looks(differences, tokens)[-1].random
    assert random.high - random.value == pytest.approx(document_half_width(differences, tokens), rel=1e-3)


def test_a_difference_that_no_seed_changes_has_no_interval():
    """Losses with two decimals: 3.51 - 3.50 and 3.52 - 3.51 differ by less than a rounding error of floats."""
    base, idea = np.array([[3.51, 3.52, 3.50, 3.53], [3.50, 3.51, 3.49, 3.52]])
    constant = looks((idea - base)[:, None], np.ones(1))[-1]
    assert 0 < constant.deviation < 1e-15 and not constant.fixed.has_interval and not constant.random.has_interval
    assert constant.evidence == 1  # or many trials would select it
    rounded = np.array([3.00, 3.13, 3.01, 3.38])
    single = looks((np.float32(rounded - 0.02).astype(float) - np.float32(rounded))[:, None], np.ones(1))[-1]
    assert single.deviation > 1e-9 and not single.fixed.has_interval
    assert looks(np.zeros((4, 1)), np.ones(1))[-1].fixed.limits == (0, 0)
    assert looks((idea - base * (1 + 1e-4))[:, None], np.ones(1))[-1].fixed.has_interval


def test_documents_of_equal_length_give_the_t_interval_of_their_means():
    differences = np.random.default_rng(0).normal(size=(1, 9))
    interval = stats.t.interval(0.95, 8, differences.mean(), stats.sem(differences[0]))
    assert document_half_width(differences, np.ones(9)) == pytest.approx((interval[1] - interval[0]) / 2)


def test_documents_of_unequal_length_cover_the_mean_of_all_documents():
    draw, missed = np.random.default_rng(1), 0
    for _ in range(1500):
        tokens = draw.lognormal(6, 1, 10)
        differences = draw.normal(size=(1, 10)) * tokens
        missed += abs(differences.sum() / tokens.sum()) > document_half_width(differences, tokens)
    assert missed / 1500 < 0.06


def test_five_documents_say_nothing_about_others():
    assert document_half_width(np.ones((1, 5)), np.ones(5)) == math.inf
    path = looks(np.random.default_rng(0).normal(size=(8, 5)), np.ones(5))
    assert path[-1].fixed.has_interval and not path[-1].random.has_interval


@pytest.mark.parametrize(
    ("low", "high", "made"),
    [
        (-0.03, -0.001, "better"),
        (0.001, 0.03, "worse"),
        (-0.009, 0.01, "equivalent"),
        (-0.009, -0.001, "equivalent"),
        (-0.02, 0.001, "undecided"),
        (None, None, "undecided"),
    ],
)
def test_decisions(low, high, made):
    assert decide(Estimate(-0.005, low, high), 0.01) == made


def test_equal_runs_are_equivalent_as_soon_as_there_is_an_interval():
    path = looks(np.zeros((5, 1)), ONE_DOCUMENT)
    assert [decide(look.fixed, 0.01) for look in path] == ["undecided"] * 3 + ["equivalent"] * 2


def test_a_difference_that_is_not_finite_is_refused():
    with pytest.raises(DataError, match="not finite"):
        looks(np.array([[0.1], [math.nan]]), ONE_DOCUMENT)


def test_simultaneous_intervals_share_the_error():
    assert simultaneous(0.95, 1) == pytest.approx(0.95)
    assert simultaneous(0.95, 5) == pytest.approx(0.99)


def test_the_promised_seeds_decide_a_difference_of_the_size_that_was_planned():
    promised = seeds_to_decide(0.01, 0.01, 0.01)
    assert promised is not None
    draws = np.random.default_rng(11).normal(0.01, 0.01, (2000, promised))
    means, halves = sequence_limits(draws)
    assert (means - halves > 0).any(axis=1).mean() >= 0.76
    assert seeds_to_decide(0.04, 0.01, 0.01) < promised < seeds_to_decide(0.005, 0.01, 0.01)
    assert seeds_to_decide(0.01, 0.01, 0.01, documents=0.02) is None


def test_evidence_of_equal_differences_is_a_number_and_the_limit_of_small_spreads():
    for spread in (0.0, 1e-9):
        assert 1e300 < evidence(-1.0, spread, 300) < math.inf
    assert evidence(0.1, 0.0, 5) == pytest.approx(max(evidence(0.1, tiny, 5) for tiny in (1e-3, 1e-5, 1e-7)))


def test_evidence_without_a_difference_is_one_on_average_wherever_a_trial_stops():
    draw, values = np.random.default_rng(2), []
    for _ in range(1000):
        path = looks(draw.normal(0, 1, (12, 1)), ONE_DOCUMENT)
        values.append(next((look for look in path if look.fixed.decided), path[-1]).evidence)
    assert np.mean(values) < 1.3
    assert np.mean(np.array(values) >= 20) <= 0.05


def test_discoveries_of_a_worked_example():
    # Four hypotheses at a rate of 0.1: one alone needs 40, two 20, three 13.3.
    assert discoveries([39.0, 1.0, 1.0, 1.0]) == [False] * 4
    assert discoveries([20.0, 1.0, 39.0, 0.0]) == [True, False, True, False]
    assert discoveries([]) == []


@pytest.mark.long
def test_few_of_the_kept_changes_gain_nothing():
    draw, false, kept = np.random.default_rng(9), [], []
    truth = np.array([0.0] * 30 + [-1.0] * 10)
    for _ in range(30):
        values = []
        for effect in truth:
            path = looks(draw.normal(effect, 0.5, (12, 1)), ONE_DOCUMENT, 0.99)
            stop = next((look for look in path if look.fixed.decided), path[-1])
            values.append(stop.evidence if stop.fixed.value < 0 else 0.0)
        chosen = np.array(discoveries(values))
        false.append((chosen & (truth == 0)).sum() / max(1, chosen.sum()))
        kept.append((chosen & (truth < 0)).sum())
    assert np.mean(false) <= 0.1 and np.mean(kept) >= 7
