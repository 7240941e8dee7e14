"""Coverage of the intervals of ``contextwise plan``, on made-up sweeps drawn from a known law.

``python -m benchmarks.plan_coverage --sizes one --sweeps 300`` (six runs of one size) or ``--sizes three --sweeps 200`` (18
runs) draws sweeps, each run with a random effect of its own, fits them as ``plan`` does, selection of the form included, and
computes the best context (and size) at 4 times the largest run's FLOPs. ``--write FOLDER`` writes one such sweep to a folder,
to try ``contextwise plan`` on. The law and the drawing are those of the tests (``tests/laws.py``).
"""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import publish
from contextwise.analysis.scaling.analysis import Analysis
from contextwise.analysis.scaling.observations import observations
from contextwise.analysis.scaling.optimum import Cost, Optimum, best_anywhere, best_context, measured_cost
from contextwise.analysis.scaling.trend import fit_trend
from contextwise.base.errors import DataError

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
laws: Any = importlib.import_module("laws")

MIDDLE = 900e3
"""Parameters of the size whose best context is asked for."""
CONTEXTS = (32.0, 8 * 2048.0)
FARTHER = 30.0


def covered(observed: Analysis, cost: Cost, law: Any, budget: float, several: bool) -> dict[str, bool]:
    """Which of the true values lie inside the intervals of a fit."""
    held, trend = {}, fit_trend(observed.observed)

    def followed(optimum: Optimum) -> Optimum:
        return trend.followed(observed.ensemble, optimum, cost, budget, CONTEXTS)

    contexts = np.geomspace(*CONTEXTS, 4000)
    losses = law(contexts, MIDDLE, budget / cost.per_token(MIDDLE, contexts))
    interval = followed(best_context(observed.ensemble, cost, budget, MIDDLE, CONTEXTS))
    held["context"] = _inside(interval.context, contexts[losses.argmin()], observed.confidence)
    held["loss"] = _inside(interval.loss, losses.min(), observed.confidence)
    if several:
        sizes = (min(laws.SIZES.values()) / 4, max(laws.SIZES.values()) * FARTHER)
        grid = np.geomspace(*sizes, 300)[:, None], np.geomspace(*CONTEXTS, 200)[None]
        losses = law(grid[1], grid[0], budget / cost.per_token(*grid))
        row, column = np.unravel_index(losses.argmin(), losses.shape)
        joint = followed(best_anywhere(observed.ensemble, cost, budget, sizes, CONTEXTS))
        held["joint size"] = _inside(joint.parameters, grid[0][row, 0], observed.confidence)
        held["joint context"] = _inside(joint.context, grid[1][0, column], observed.confidence)
        held["joint loss"] = _inside(joint.loss, losses.min(), observed.confidence)
    return held


def _inside(samples: np.ndarray, truth: float, confidence: float) -> bool:
    low, high = np.quantile(samples, [(1 - confidence) / 2, (1 + confidence) / 2])
    return bool(low <= truth <= high)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", choices=["one", "three"], default="one")
    parser.add_argument("--sweeps", type=int, default=300)
    parser.add_argument("--beyond", type=float, default=4.0, help="times the largest run's FLOPs")
    parser.add_argument("--run-noise", type=float, default=0.006, help="random effect of a run, as a share of the loss")
    parser.add_argument("--point-noise", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=0, help="of the first sweep")
    parser.add_argument("--write", type=Path, default=None, help="write one sweep to this folder, and do no more")
    options = parser.parse_args(arguments)
    several = options.sizes == "three"
    law, sizes = (laws.true_loss, laws.SIZES) if several else (laws.one_size_loss, {"nano": MIDDLE})
    noise = {"run_noise": options.run_noise, "point_noise": options.point_noise}
    if options.write is not None:
        laws.write_sweep(options.write, laws.drawn_points(law, sizes, **noise, seed=options.seed))
        print(options.write)
        return
    held: dict[str, list[bool]] = {}
    refused = 0
    for seed in range(options.seed, options.seed + options.sweeps):
        points = observations(laws.drawn_points(law, sizes, **noise, seed=seed, count=12))
        cost = measured_cost(points, "flops")
        try:
            fit = Analysis(points, 100, 0.9, seed)
        except DataError:
            refused += 1
            continue
        for name, inside in covered(fit, cost, law, points.flops.max() * options.beyond, several).items():
            held.setdefault(name, []).append(inside)
    shares = {name: float(np.mean(inside)) for name, inside in held.items()}
    for name, share in shares.items():
        print(f"{name:>14}: {share:.0%} of {len(held[name])} 90% intervals hold the truth")
    settings = {name: value for name, value in vars(options).items() if name != "write"}
    publish(f"plan_coverage-{options.sizes}", {"settings": settings, "covered": shares, "refused": refused})


if __name__ == "__main__":
    main()
