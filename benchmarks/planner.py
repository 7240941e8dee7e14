"""The planner against three simple rules, on real sweeps of which it sees the cheap half.

``python -m benchmarks.planner`` shows each way the smaller budgets of each table under ``benchmarks/results/sweeps``, and asks
for the best training context of each size at the largest one. Three ways are rules without a law: the best context of the
largest budget shown, the corpus's median document, and a parabola through the losses of that budget over the logarithm of the
context. A second planner combines the growth of its law's best context with that of the other sweeps.

The error is a ratio, between the answer and the measured optimum (:func:`vertex`); the regret is the measured loss of the
trained context nearest to the answer, minus that of the best one.
"""

import json
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, publish
from contextwise.analysis.scaling.analysis import Analysis
from contextwise.analysis.scaling.observations import Observations, measured
from contextwise.analysis.scaling.optimum import best_context, measured_cost
from contextwise.analysis.scaling.tables import read_table
from contextwise.base.errors import DataError

SWEEPS = RESULTS / "sweeps"
SHOWN = 3
"""Budgets of the cheap half."""
EQUAL = 1.05
"""Runs are whole steps: their FLOPs are the budget's up to this factor."""


def budgets_of(observed: Observations) -> list[float]:
    """The budgets of a sweep, ascending."""
    flops = np.sort(observed.flops)
    return flops[np.append(True, flops[1:] > flops[:-1] * EQUAL)].tolist()


def parabola(contexts: np.ndarray, losses: np.ndarray) -> float:
    """The lowest point of a parabola in ln l through these losses, inside the contexts; the best of them if it has none."""
    x = np.log(contexts)
    curve, slope, _ = np.polyfit(x, losses, 2)
    if curve <= 0:
        return float(contexts[losses.argmin()])
    return float(np.exp(np.clip(-slope / (2 * curve), x[0], x[-1])))


def vertex(contexts: np.ndarray, losses: np.ndarray) -> float:
    """The lowest point of the parabola through the best context and its neighbours; the best one where it has one neighbour."""
    best = int(losses.argmin())
    near = slice(best - 1, best + 2)
    return float(contexts[best]) if best in (0, len(contexts) - 1) else parabola(contexts[near], losses[near])


def regret(contexts: np.ndarray, losses: np.ndarray, answer: float) -> float:
    """Nats that the trained context nearest to an answer loses against the best one."""
    return float(losses[np.abs(np.log(contexts / answer)).argmin()] - losses.min())


def growth(observed: Observations) -> float:
    """Power of the budget with which a sweep's best context grew, by parabolas, from the cheap half to the largest budget."""
    ends = [budgets_of(observed)[i] for i in (SHOWN - 1, -1)]
    best = [[parabola(*measured(observed, size, budget)) for budget in ends] for size in range(len(observed.sizes))]
    return float(np.mean(np.diff(np.log(best))) / np.diff(np.log(ends))[0])


def grown(shown: np.ndarray, hidden: np.ndarray, factor: float, powers: list[float]) -> np.ndarray:
    """Best contexts (R,) of the laws' ensemble, their growth combined with that of other sweeps by precision.

    Args:
        shown, hidden: (R,) at the largest budget shown, and at one ``factor`` times as large; the first are those of the law.
    """
    far = np.log(factor)
    own, others, spread = np.log(hidden / shown) / far, float(np.mean(powers)), float(np.std(powers, ddof=1))
    weight = spread**2 / (spread**2 + own[1:].var())
    draw = np.random.default_rng(0).standard_normal(len(own))
    draw[0] = 0
    return shown * np.exp(far * (weight * own + (1 - weight) * (others + spread * draw)))


def compare(observed: Observations, median_document: float, powers: list[float]) -> list[dict[str, Any]]:
    """Each size of a sweep at its largest budget: what was measured, and the answer, error and regret of each way.

    Args:
        powers: :func:`growth` of other sweeps.
    """
    budgets, rows = budgets_of(observed), list[dict[str, Any]]()
    shown, budget = budgets[SHOWN - 1], budgets[-1]
    cheap = observed.where(observed.flops <= shown * EQUAL)
    analysis, cost = Analysis(cheap), measured_cost(cheap, "flops")
    bounds = float(cheap.context.min()), float(cheap.context.max())
    for index, (size, parameters) in enumerate(zip(cheap.sizes, cheap.size_parameters.tolist(), strict=True)):
        before = measured(observed, index, shown)

        def best(budget: float, parameters: float = parameters) -> np.ndarray:
            """(1 + R,) of the law, and of its ensemble."""
            laws = analysis.law, analysis.ensemble
            return np.concatenate([best_context(law, cost, budget, parameters, bounds).context for law in laws])

        contexts, losses = measured(observed, index, budget)
        laws = {"planner": best(budget)}
        laws["planner, growth of others"] = grown(best(shown), laws["planner"], budget / shown, powers)
        ways = {way: float(answers[0]) for way, answers in laws.items()} | {
            "last best": float(before[0][before[1].argmin()]),
            "median document": float(np.clip(median_document, contexts[0], contexts[-1])),
            "parabola": parabola(*before),
        }
        truth = vertex(contexts, losses)
        intervals = {way: np.quantile(answers[1:], [0.05, 0.95]).tolist() for way, answers in laws.items()}
        row: dict[str, Any] = {"size": size, "flops": float(budget), "measured": truth, "answers": ways}
        row["errors"] = {way: float(np.exp(abs(np.log(value / truth)))) for way, value in ways.items()}
        row["regrets"] = {way: regret(contexts, losses, value) for way, value in ways.items()}
        row["intervals"] = intervals
        row["inside"] = {way: bool(low <= truth <= high) for way, (low, high) in intervals.items()}
        rows.append(row)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each way the median error and the regret; of those with intervals the share that holds the measured optimum."""
    ways = {}
    for way in rows[0]["answers"]:
        regrets = [row["regrets"][way] for row in rows]
        ways[way] = {"median_error": median(row["errors"][way] for row in rows)}
        ways[way] |= {"mean_regret": fmean(regrets), "median_regret": median(regrets), "largest_regret": max(regrets)}
        if way in rows[0]["inside"]:
            ways[way]["covered"] = fmean(row["inside"][way] for row in rows)
    return ways


def main() -> None:
    tables = {path.stem: read_table(path) for path in sorted(SWEEPS.glob("*.json"))}
    powers = {name: growth(observed) for name, observed in tables.items()}
    rows, refused = [], {}
    for name, observed in tables.items():
        document = json.loads((SWEEPS / f"{name}.json").read_text())["median_document"]
        others = [power for other, power in powers.items() if other != name]
        try:
            rows += [{"sweep": name, **row} for row in compare(observed, document, others)]
        except DataError as error:
            refused[name] = str(error)
    ways = summary(rows)
    for way, numbers in ways.items():
        print(f"{way:>26}: " + ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in numbers.items()))
    print(f"{len(rows)} cases; refused: {', '.join(refused) or 'none'}")
    publish("planner", {"shown_budgets": SHOWN, "growth": powers, "ways": ways, "cases": rows, "refused": refused})


if __name__ == "__main__":
    main()
