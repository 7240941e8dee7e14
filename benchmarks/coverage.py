"""Coverage and power of the intervals over documents and seeds, in simulations.

``python -m benchmarks.coverage`` draws differences of two models with a known mean, takes the interval of
:func:`contextwise.base.intervals.estimate` (as ``compare`` does), and prints the share of intervals that contain the mean, and
of those that exclude zero where the mean is three of its standard deviations. A document's difference is the mean, plus an
effect of the document, one of the seed, and one of both. The worlds are those of :data:`WORLDS`.

Ratio: the variance between seeds, over the variance of the mean over the documents. The percentile bootstrap over the
documents of one seed is shown beside.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from benchmarks.harness import publish
from contextwise.base.estimates import written
from contextwise.base.intervals import estimate, percentile_interval, resampled_ratios
from contextwise.base.progress import console
from contextwise.base.tables import Column, Table, terminal

DOCUMENTS = (6, 20, 60, 200)
SEEDS = (1, 2, 4, 12)
RATIOS = (0.0, 1.0, 16.0)
LARGE = 3.0
"""The true difference, in standard deviations of its estimate."""


def normal(draw: np.random.Generator, *shape: int) -> np.ndarray:
    return draw.normal(size=shape)


def heavy(draw: np.random.Generator, *shape: int) -> np.ndarray:
    return draw.standard_t(3, size=shape) / 3**0.5


def skewed(draw: np.random.Generator, *shape: int) -> np.ndarray:
    return draw.exponential(size=shape) - 1


def mild(draw: np.random.Generator, *shape: int) -> np.ndarray:
    return (draw.lognormal(0, 0.5, shape) - np.exp(0.125)) / np.sqrt((np.exp(0.25) - 1) * np.exp(0.25))


WORLDS = {
    "equal sizes, normal": (0.0, 0.5, normal),
    "unequal sizes, normal": (1.0, 0.5, normal),
    "unequal sizes, seeds differ on each document": (1.0, 2.0, normal),
    "unequal sizes, heavy tails": (1.0, 0.5, heavy),
    "unequal sizes, mildly skewed": (1.0, 0.5, mild),
    "unequal sizes, skewed": (1.0, 0.5, skewed),
}
"""Name -> sigma of the logarithm of a document's size (1: a tenth of the documents has 40% of the text), the standard deviation
of the effect of seed and document together where that of the documents is 1, and the distribution of the effects: normal,
Student's t with three degrees of freedom, lognormal with sigma 0.5, exponential."""


def drawn(
    draw: np.random.Generator, world: str, documents: int, seeds: int, ratio: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Sums of the differences (S, N), the sizes of the documents (N,), and the standard deviation of the mean."""
    sigma, together, effects = WORLDS[world]
    sizes = np.exp(sigma * draw.normal(size=documents))
    of_mean = float(np.sqrt(np.square(sizes).sum()) / sizes.sum())  # standard deviation, by the documents
    of_seed = ratio**0.5 * of_mean * effects(draw, seeds, 1)
    differences = effects(draw, 1, documents) + of_seed + together * effects(draw, seeds, documents)
    deviation = of_mean * (1 + (ratio * (seeds > 1) + together**2) / seeds) ** 0.5
    return sizes * differences, sizes, deviation


def coverage(world: str, documents: int, seeds: int, ratio: float, trials: int) -> dict[str, Any]:
    """Share of the intervals that contain the true difference, zero, and that exclude it where it is large."""
    draw = np.random.default_rng([documents, seeds, int(ratio), *world.encode()])
    held = found = 0
    for _ in range(trials):
        block, sizes, deviation = drawn(draw, world, documents, seeds, ratio)
        low, high = estimate([block], sizes).limits
        held += low <= 0 <= high
        found += low + LARGE * deviation > 0
    about = {"world": world, "ratio": ratio, "documents": documents, "seeds": seeds, "method": "t"}
    return {**about, "coverage": held / trials, "power": found / trials}


def bootstrap_coverage(world: str, documents: int, trials: int) -> dict[str, Any]:
    """The coverage of the percentile bootstrap over documents, with one seed."""
    draw, held = np.random.default_rng([documents, *world.encode()]), 0
    for _ in range(trials):
        block, sizes, _ = drawn(draw, world, documents, 1, 0.0)
        low, high = percentile_interval(resampled_ratios(block.T, sizes)[:, 0])
        held += low <= 0 <= high
    about = {"world": world, "ratio": 0.0, "documents": documents, "seeds": 1, "method": "percentile bootstrap"}
    return {**about, "coverage": held / trials}


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """Coverage and power by number of documents and ratio (rows), and by number of seeds (columns), of each world."""
    known = {(row["world"], row["documents"], row["ratio"], row["seeds"], row["method"]): row for row in rows}

    def line(what: str, *case: Any) -> list[Any]:
        shares = [known.get((*case, seeds, "t"), {}).get(what) for seeds in SEEDS]
        boot = known.get((*case, 1, "percentile bootstrap"), {}).get(what)
        return [*case[1:], *shares, *([boot] if what == "coverage" else [])]

    columns = [Column("documents", "integer"), Column("ratio", "estimate", "g")]
    columns += [Column(str(seeds), "percent", missing="") for seeds in SEEDS]
    boot = Column("bootstrap, 1", "percent", missing="")
    return [
        Table(
            f"{world}: {what}, by seeds",
            [*columns, boot] if what == "coverage" else columns,
            [line(what, world, documents, ratio) for documents in DOCUMENTS for ratio in RATIOS],
        )
        for world in WORLDS
        for what in ("coverage", "power")
    ]


def cell(case: tuple[str, int, int, float, int]) -> dict[str, Any]:
    return coverage(*case)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--trials", type=int, default=10_000, help="of each case; a twentieth of them for the bootstrap"
    )
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    cases = [
        (world, documents, seeds, ratio, options.trials)
        for world in WORLDS
        for documents in DOCUMENTS
        for seeds in SEEDS
        for ratio in (RATIOS if seeds > 1 else RATIOS[:1])
    ]
    with ProcessPoolExecutor(options.processes) as pool:
        rows = list(pool.map(cell, cases))
    rows += [
        bootstrap_coverage(world, documents, max(1, options.trials // 20))
        for world in WORLDS
        for documents in DOCUMENTS
    ]
    title = "Share of the 95% intervals that contain the true difference, and that exclude zero where it is large"
    console.print(terminal(title, *tables(rows)))
    several = [row for row in rows if row["method"] == "t" and row["seeds"] > 1]
    for world in WORLDS:
        shares = sorted(row["coverage"] for row in several if row["world"] == world)
        print(f"{world}: {written(shares[0], 'percent')} to {written(shares[-1], 'percent')} with several seeds")
    publish("coverage", {"trials": options.trials, "cells": rows})


if __name__ == "__main__":
    main()
