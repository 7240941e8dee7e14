"""Coverage of the intervals of ``contextwise plan budget``, on made-up sweeps drawn from a known law.

``python -m benchmarks.plan_coverage --sizes one --sweeps 300`` (six runs of one size) or ``--sizes three --sweeps 200`` (18
runs) draws sweeps, each run with a random effect of its own, fits them as ``plan`` does, selection of the form included, and
computes the best context (and size) at 4 times the largest run's FLOPs. ``--write FOLDER`` writes one such sweep to a folder,
to try ``contextwise plan budget`` on. The law and the drawing are those of the tests (``tests/laws.py``).

``--powers 0 0.5 1`` draws instead sweeps whose best context grows with a given power of the budget and is 64 tokens at the
largest one (contexts of 8 to 1,024, five equal budgets over a factor of ten), and asks the trend alone.
"""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import publish
from contextwise.base.errors import DataError
from contextwise_plan.scaling.analysis import Analysis
from contextwise_plan.scaling.observations import observations
from contextwise_plan.scaling.optimum import Cost, Optimum, best_anywhere, best_context, measured_cost
from contextwise_plan.scaling.trend import fit_trend
from contextwise_plan.sweeps.points import SweepPoint

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
laws: Any = importlib.import_module("laws")

MIDDLE = 900e3
"""Parameters of the size whose best context is asked for."""
CONTEXTS = (32.0, 8 * 2048.0)
FARTHER = 30.0
LARGEST = 2e12
"""FLOPs of the largest runs of a sweep with a given power."""


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


def powers_covered(
    powers: list[float], sweeps: int, beyond: float, noise: tuple[float, float], seed: int
) -> list[dict[str, Any]]:
    """For each power how far the trend's best context is off, and how often its interval holds the true one."""
    rows = []
    for power in powers:
        errors, inside, growths, refused = list[float](), list[bool](), list[float](), 0
        for each in range(seed, seed + sweeps):
            try:
                trend = fit_trend(observations(growing(power, *noise, each)))
            except DataError:
                refused += 1
                continue
            truth, budget = 64 * beyond**power, LARGEST * beyond
            errors.append(float(np.exp(abs(np.log(trend.context(budget, MIDDLE) / truth)))))
            inside.append(_inside(trend.samples(budget, np.full(400, MIDDLE)), truth, 0.9))
            growths.append(float(trend.mean[1]))
        rows.append(
            {
                "power": power,
                "growth": float(np.mean(growths)),
                "median_error": float(np.median(errors)),
                "beyond_root_two": float(np.mean(np.array(errors) > np.sqrt(2))),
                "covered": float(np.mean(inside)),
                "refused": refused,
            }
        )
    return rows


def growing(power: float, run_noise: float, point_noise: float, seed: int) -> list[SweepPoint]:
    """Points of a sweep of one size whose best context grows with a power of the budget."""
    draw, points = np.random.default_rng(seed), []
    for context in 2 ** np.arange(3, 11):
        luck = run_noise * draw.standard_normal()
        for budget in (LARGEST * np.geomspace(0.1, 1, 5)).tolist():
            best = 64 * (budget / LARGEST) ** power
            loss = 2 + 2 * (budget / LARGEST) ** -0.15 + 0.03 * np.log(context / best) ** 2
            loss *= np.exp(luck + point_noise * draw.standard_normal())
            about = (
                f"c{context}",
                "nano",
                int(MIDDLE),
                int(context),
                0,
                1,
                int(budget / 6 / MIDDLE),
                budget,
                budget / 1e10,
            )
            points.append(SweepPoint(*about, float(loss), None))
    return points


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
    parser.add_argument("--shortest", type=int, default=laws.CONTEXTS[0], help="training context, a power of two")
    parser.add_argument("--write", type=Path, default=None, help="write one sweep to this folder, and do no more")
    parser.add_argument("--powers", type=float, nargs="+", help="sweeps whose best context grows with these powers")
    options = parser.parse_args(arguments)
    settings = {name: value for name, value in vars(options).items() if name != "write"}
    if options.powers:
        deviations = options.run_noise, options.point_noise
        rows = powers_covered(options.powers, options.sweeps, options.beyond, deviations, options.seed)
        for row in rows:
            print(", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in row.items()))
        publish("plan_coverage-powers", {"settings": settings | {"sizes": "one"}, "powers": rows})
        return
    several = options.sizes == "three"
    law, sizes = (laws.true_loss, laws.SIZES) if several else (laws.one_size_loss, {"nano": MIDDLE})
    contexts = tuple(2**power for power in range(options.shortest.bit_length() - 1, 12))
    drawn: dict[str, Any] = {"sizes": sizes, "contexts": contexts}
    drawn |= {"run_noise": options.run_noise, "point_noise": options.point_noise}
    if options.write is not None:
        laws.write_sweep(options.write, laws.drawn_points(law, **drawn, seed=options.seed))
        print(options.write)
        return
    held: dict[str, list[bool]] = {}
    refused = 0
    for seed in range(options.seed, options.seed + options.sweeps):
        points = observations(laws.drawn_points(law, **drawn, seed=seed, count=12))
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
    del settings["powers"]
    wider = "" if contexts == laws.CONTEXTS else f"-from-{contexts[0]}"
    publish(f"plan_coverage-{options.sizes}{wider}", {"settings": settings, "covered": shares, "refused": refused})


if __name__ == "__main__":
    main()
