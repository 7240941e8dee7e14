"""``benchmarks/sweep_gap.py`` on numbers worked out by hand."""

import pytest
from benchmarks.sweep_gap import gap, read_cells

from contextwise_plan.scaling.observations import observations
from contextwise_plan.sweeps.points import SweepPoint

BUDGETS = (1e12, 2e12)


def swept(nats, contexts=(16, 32), seeds=(0,)):
    """A sweep of one size; ``nats(context, seed, budget)``: of two documents of 10 and 30 targets."""
    return observations(
        [
            SweepPoint(
                f"c{context}-s{seed}-{budget:.0e}",
                "nano",
                1_000_000,
                context,
                seed,
                1,
                int(budget / 6e6),
                budget,
                1.0,
                sum(nats(context, seed, budget)) / 40,
                standard_error=0.01,
                document_nats=nats(context, seed, budget),
                document_targets=(10, 30),
                document_ids=(3, 7),
            )
            for context in contexts
            for seed in seeds
            for budget in BUDGETS
        ]
    )


def test_the_gap_is_the_mean_of_what_both_sweeps_have():
    first = swept(lambda *_: (20.0, 90.0), (16, 32, 64))
    second = swept(lambda context, *_: (22.0, 90.0) if context == 16 else (20.0, 96.0), (16, 32, 128), seeds=(0, 1))
    difference, pairs = gap(read_cells(second, 1e12), read_cells(first, 1e12), "nano")
    # 2 and 6 nats more of 40 targets, at two contexts; 64, 128 and the second seed stand alone.
    assert (difference.value, pairs) == (pytest.approx((2 + 6) / 2 / 40), 2)


def test_the_gap_is_that_of_the_budget():
    first = swept(lambda *_: (20.0, 90.0))
    second = swept(lambda context, seed, budget: (20.0, 90.0 + (4 if budget == BUDGETS[0] else 0)))
    values = [gap(read_cells(second, budget), read_cells(first, budget), "nano")[0].value for budget in BUDGETS]
    assert values == pytest.approx([0.1, 0.0])
