"""Coverage of the intervals over documents and seeds, in simulations.

``python -m benchmarks.coverage`` draws differences of two models with a known mean, takes the interval of
:func:`contextwise.base.intervals.estimate` (as ``compare`` does), and prints the share of intervals that contain the mean. A
document's difference is the mean, plus an effect of the document, one of the seed, and one of both.

- Worlds: documents of equal size with normal effects; and sizes that are lognormal (sigma 1: a tenth of the documents has 40%
  of the text), with normal, heavy-tailed (t with three degrees of freedom) and skewed (exponential) effects.
- Ratio: the variance between seeds, over the variance of the mean over the documents. With one seed it is 0: such an interval
  does not cover other seeds.
- ``bootstrap``: the percentile bootstrap over documents of one seed, for comparison.

Where the true difference is zero, 100% minus the coverage are decided falsely; below six documents nothing is decided.
"""

import argparse
from typing import Any

import numpy as np

from benchmarks.harness import publish
from contextwise.base.estimates import written
from contextwise.base.intervals import estimate, percentile_interval, resampled_ratios
from contextwise.base.progress import console
from contextwise.base.tables import Column, Table, terminal

DOCUMENTS = (2, 3, 5, 6, 8, 10, 20, 50)
SEEDS = (1, 2, 3, 5, 10)
RATIOS = (0.0, 1.0, 16.0)
TRUTH = 0.3
BOTH = 0.5
"""Standard deviation of the effect of seed and document together, where that of the documents is 1."""


def normal(draw: np.random.Generator, *shape: int) -> np.ndarray:
    return draw.normal(size=shape)


def heavy(draw: np.random.Generator, *shape: int) -> np.ndarray:
    return draw.standard_t(3, size=shape) / 3**0.5


def skewed(draw: np.random.Generator, *shape: int) -> np.ndarray:
    return draw.exponential(size=shape) - 1


WORLDS = {
    "equal sizes, normal": (0.0, normal),
    "unequal sizes, normal": (1.0, normal),
    "unequal sizes, heavy tails": (1.0, heavy),
    "unequal sizes, skewed": (1.0, skewed),
}
"""Name -> sigma of the logarithm of a document's size, and the distribution of the effects."""


def drawn(
    draw: np.random.Generator, world: str, documents: int, seeds: int, ratio: float
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the differences (S, N), and the sizes of the documents (N,)."""
    sigma, effects = WORLDS[world]
    sizes = np.exp(sigma * draw.normal(size=documents))
    of_mean = float(np.sqrt(np.square(sizes).sum()) / sizes.sum())  # standard deviation, by the documents
    of_seed = ratio**0.5 * of_mean * effects(draw, seeds, 1)
    differences = effects(draw, 1, documents) + of_seed + BOTH * effects(draw, seeds, documents)
    return sizes * (TRUTH + differences), sizes


def coverage(world: str, documents: int, seeds: int, ratio: float, trials: int) -> dict[str, Any]:
    """Share of the intervals that contain the true difference, and their median half-width."""
    draw = np.random.default_rng([documents, seeds, int(ratio), *world.encode()])
    intervals = [estimate([block], sizes) for block, sizes in (
        drawn(draw, world, documents, seeds, ratio) for _ in range(trials)
    )]  # fmt: skip
    limits = np.array([each.limits for each in intervals])
    return {
        "world": world,
        "ratio": ratio,
        "documents": documents,
        "seeds": seeds,
        "method": intervals[0].method,
        "coverage": float(((limits[:, 0] <= TRUTH) & (limits[:, 1] >= TRUTH)).mean()),
        "half_width": float(np.median(limits[:, 1] - limits[:, 0]) / 2),
    }


def bootstrap_coverage(world: str, documents: int, trials: int) -> dict[str, Any]:
    """The same for the percentile bootstrap over documents, with one seed."""
    draw, held = np.random.default_rng([documents, *world.encode()]), 0
    for _ in range(trials):
        block, sizes = drawn(draw, world, documents, 1, 0.0)
        low, high = percentile_interval(resampled_ratios(block.T, sizes)[:, 0])
        held += low <= TRUTH <= high
    about = {"world": world, "ratio": 0.0, "documents": documents, "seeds": 1, "method": "percentile bootstrap"}
    return {**about, "coverage": held / trials}


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """Coverage by number of documents and ratio (rows), and by number of seeds (columns), of each world."""
    known = {
        (row["world"], row["documents"], row["ratio"], row["seeds"], row["method"]): row["coverage"] for row in rows
    }

    def line(*case: Any) -> list[Any]:
        of_t = [known.get((*case, seeds, "t")) for seeds in SEEDS]
        return [*case[1:], *of_t, known.get((*case, 1, "percentile bootstrap"))]

    heads = [*(f"{seeds} seed{'s' * (seeds > 1)}" for seeds in SEEDS), "bootstrap,\n1 seed"]
    columns = [Column("documents", "integer"), Column("ratio", "estimate", "g")]
    columns += [Column(head, "percent", missing="") for head in heads]
    return [
        Table(world, columns, [line(world, documents, ratio) for documents in DOCUMENTS for ratio in RATIOS])
        for world in WORLDS
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000, help="of each case; half as many for the bootstrap")
    options = parser.parse_args(arguments)
    rows = []
    for world in WORLDS:
        for documents in DOCUMENTS:
            rows.append(bootstrap_coverage(world, documents, max(1, options.trials // 2)))
            rows += [
                coverage(world, documents, seeds, ratio, options.trials)
                for seeds in SEEDS
                for ratio in (RATIOS if seeds > 1 else RATIOS[:1])
            ]
    console.print(terminal("Share of the 95% intervals that contain the true difference", *tables(rows)))
    several = [row for row in rows if row["method"] == "t"]
    least = min(several, key=lambda row: row["coverage"])
    symmetric = min(row["coverage"] for row in several if "skewed" not in row["world"])
    print(f"least: {written(least['coverage'], 'percent')} ({least['world']}, {least['documents']} documents); "
          f"without skew {written(symmetric, 'percent')}")  # fmt: skip
    publish("coverage", {"trials": options.trials, "cells": rows})


if __name__ == "__main__":
    main()
