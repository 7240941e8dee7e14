"""The lead of one model's sweep over another's at equal compute, budget by budget.

``python -m benchmarks.sweep_gap gpt2 contextlm`` pairs the tables ``gpt2-TEXT.json`` and ``contextlm-TEXT.json`` under
``benchmarks/results/sweeps``: at each budget the loss of the second minus that of the first, the mean over the contexts and
seeds that both were trained with, paired by held-out document. A lead that is a head start shrinks as the budgets grow.
"""

import argparse
from typing import Any

import numpy as np

from benchmarks.harness import publish
from benchmarks.planner import SWEEPS
from contextwise.base.estimates import Estimate
from contextwise.base.intervals import ratio_difference
from contextwise_plan.optimum import Cell, cells, tracks
from contextwise_plan.scaling.observations import Observations, budgets_of, read_table

Cells = dict[tuple[str, int], Cell]


def read_cells(observed: Observations, budget: float) -> Cells:
    """(size, context) -> losses at a budget."""
    lines = tracks(observed.points, "flops")
    return {(cell.size, cell.context): cell for cell in cells(lines, budget)}


def gap(ours: Cells, theirs: Cells, size: str) -> tuple[Estimate, int]:
    """Ours minus theirs, paired by document, and the number of contexts and seeds that it is the mean of.

    The documents of two contexts are the same; their targets differ by a few, so that nats and targets are averaged apart.
    """
    pairs = [
        (mine.readings[seed], theirs[cell].readings[seed])
        for cell, mine in ours.items()
        if cell[0] == size and cell in theirs
        for seed in sorted(set(mine.readings) & set(theirs[cell].readings))
    ]
    assert len({reading.documents for pair in pairs for reading in pair}) == 1
    sums = (np.mean([np.asarray(reading.sums) for reading in side], axis=0) for side in zip(*pairs, strict=True))
    return ratio_difference(*sums), len(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first")
    parser.add_argument("second")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for path in sorted(SWEEPS.glob(f"{options.first}-*.json")):
        other = SWEEPS / path.name.replace(options.first, options.second, 1)
        if not other.exists():
            continue
        first, second = read_table(path), read_table(other)
        for size in (size for size in first.sizes if size in second.sizes):
            for budget in budgets_of(first):
                difference, runs = gap(read_cells(second, budget), read_cells(first, budget), size)
                about = {"text": path.stem.partition("-")[2], "size": size, "flops": budget, "pairs": runs}
                rows.append(about | {"difference": difference.to_dict()})
                print(f"{about['text']:>6} {size} {budget:.2g} FLOPs, {runs} pairs of runs: {difference:+.3f}")
    publish(f"sweep_gap-{options.second}", {"first": options.first, "second": options.second, "rows": rows})


if __name__ == "__main__":
    main()
