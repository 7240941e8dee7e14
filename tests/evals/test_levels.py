"""Means, intervals over documents, and paired differences."""

import numpy as np
import pytest

from contextwise.base.intervals import ratios
from contextwise_evals.levels import level_of, mean_level


def scores(*columns):
    return np.array(columns, dtype=float).T


def named(count):
    return [f"d{i}" for i in range(count)]


def test_the_interval_is_that_over_documents():
    draw = np.random.default_rng(1)
    documents = [f"d{i // 5}" for i in range(200)]  # five questions a document, which agree
    values = np.repeat(draw.random(40), 5)
    level = level_of(scores(values, values), documents)
    clustered = level.estimate(0)
    single = level_of(scores(values), named(200)).estimate(0)
    assert clustered.value == pytest.approx(values.mean())
    assert (clustered.high - clustered.low) > 1.8 * (single.high - single.low)  # five equal answers are one
    sums = values.reshape(40, 5).sum(1)
    other = ratios(sums, {"questions": np.full(40, 5)})["questions"]
    assert clustered.low == pytest.approx(other.low, abs=0.01)
    assert clustered.high == pytest.approx(other.high, abs=0.01)


def test_the_difference_is_paired():
    """What all documents share, however much it varies between them, is not in the interval of a difference."""
    draw = np.random.default_rng(2)
    hard = draw.random(50) * 0.8
    level = level_of(scores(hard, hard + 0.1 + 0.01 * draw.standard_normal(50)), named(50))
    gain = level.gain(0, 1)
    assert gain.value == pytest.approx(0.1, abs=0.01) and gain.high - gain.low < 0.01
    assert level.estimate(0).high - level.estimate(0).low > 0.1


def test_what_all_documents_agree_on_is_not_taken_for_certain():
    level = level_of(scores(np.zeros(20), np.zeros(20)), named(20))
    z2 = 1.959964**2
    assert level.estimate(0).low == 0 and level.estimate(0).high == pytest.approx(z2 / (20 + z2), rel=1e-4)
    assert level.gain(0, 1).high == -level.gain(0, 1).low == pytest.approx(z2 / (20 + z2), rel=1e-4)
    ones = level_of(scores(np.ones(20)), named(20)).estimate(0)
    assert ones.high == 1 and ones.low == pytest.approx(20 / (20 + z2), rel=1e-4)


def test_one_document_allows_no_interval():
    level = level_of(scores([0.1, 0.3], [0.5, 0.5]), ["d", "d"])
    assert level.estimate(0).value == pytest.approx(0.2) and level.estimate(0).low is None
    assert level.gain(0, 1).value == pytest.approx(0.3)
    several = mean_level([level, level_of(scores([0.0, 1.0], [1.0, 0.0]), named(2))])
    assert several.estimate(0).low is None and several.values_V.tolist() == pytest.approx([0.35, 0.5])


def test_a_groups_interval_is_that_of_independent_data_sets():
    draw = np.random.default_rng(6)
    values = draw.random((2, 100))
    levels = [level_of(scores(v), named(100)) for v in values]
    mean = mean_level(levels).estimate(0)
    width = [level.estimate(0).high - level.estimate(0).low for level in levels]
    assert mean.value == pytest.approx(values.mean())
    assert mean.high - mean.low == pytest.approx(np.hypot(*width) / 2, rel=0.1)
