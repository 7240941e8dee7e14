"""When a claim is told: intervals above and below a bound, shares, means."""

import numpy as np
import pytest

from contextwise.evaluation.metrics import Estimate
from contextwise.reproductions.claims import above, all_hold, mean_of, share_of, shown


@pytest.mark.parametrize(
    ("found", "bound", "holds"),
    [
        (Estimate(1.0, 0.1, 2.0), 0.0, True),
        (Estimate(1.0, 0.1, 2.0), 3.0, False),
        (Estimate(1.0, -0.1, 2.0), 0.0, None),
        (Estimate(1.0), 0.0, None),
    ],
)
def test_a_bound_inside_the_interval_leaves_it_open(found, bound, holds):
    assert above(found, bound) is holds


def test_one_that_fails_settles_it_and_one_that_is_open_keeps_it_open():
    assert all_hold([True, True]) is True
    assert all_hold([True, None, False]) is False
    assert all_hold([True, None]) is None
    assert all_hold([]) is None


def test_the_mean_lies_in_its_interval_which_shrinks_with_the_number_of_values():
    draw = np.random.default_rng(0)
    few, many = (mean_of(draw.normal(3.0, 1.0, size=n)) for n in (20, 2000))
    assert few.low < few.value < few.high
    assert many.high - many.low < few.high - few.low
    assert many.low < 3.0 < many.high
    assert mean_of(np.ones(5)) == Estimate(1.0)


def test_a_share_has_wilsons_interval():
    found = share_of(0, 10)
    assert (found.value, found.low) == (0.0, 0.0)
    # z² / (n + z²) with z = 1.96.
    assert found.high == pytest.approx(0.2775, abs=1e-3)
    assert shown(Estimate(-0.5, -1.0, 0.25), 2, "+") == "-0.50 [-1.00, +0.25]"
