"""The planner against three simple rules, on real sweeps of which it sees the cheap half.

``python -m benchmarks.planner`` shows each way the smaller budgets of each table under ``benchmarks/results/sweeps``, and asks
for the best training context of each size at every larger one. The planner extends the trend of the measured best contexts,
with a prior for its powers from the *other* sweeps. Beside it: the optimum of the law of the loss, and three rules without a
law, the best context of the largest budget shown, the corpus's median document, and a parabola through the losses of that
budget over the logarithm of the context.

The error is a ratio, between the answer and the measured optimum (:func:`vertex`); the regret is the measured loss of the
trained context nearest to the answer, minus that of the best one.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, publish
from contextwise.base.errors import DataError
from contextwise.base.estimates import Estimate, as_json
from contextwise.base.intervals import mean_estimate
from contextwise_plan.optimum import cells
from contextwise_plan.scaling.analysis import Analysis, data_of, ensemble_estimate
from contextwise_plan.scaling.fitting import widened_residuals
from contextwise_plan.scaling.observations import Observations, read_table
from contextwise_plan.scaling.optimum import best_context, measured_cost
from contextwise_plan.scaling.trend import Powers, Trend, fit_trend
from contextwise_plan.tracks import tracks

SWEEPS = RESULTS / "sweeps"
SHOWN = 3
"""Budgets of the cheap half."""
VAGUE = Powers(budget=(0.5, 10.0), size=(-0.6, 10.0))
"""A prior that lets a sweep speak for itself."""
LEAST = 0.1
"""Least standard deviation of a prior: a few sweeps that agree by chance do not exclude another power."""
SAMPLES = 200
EQUAL = 1.05
"""Runs are whole steps: their FLOPs are the budget's up to this factor."""


def budgets_of(observed: Observations) -> list[float]:
    """The budgets of a sweep in FLOPs, ascending: each the smallest of the points within :data:`EQUAL` of it."""
    budgets = list[float]()
    for flops in np.unique(observed.flops).tolist():
        if not budgets or flops > budgets[-1] * EQUAL:
            budgets.append(flops)
    return budgets


def up_to(observed: Observations, budget: float) -> Observations:
    """The points up to a budget in FLOPs; runs and sizes without points are dropped."""
    kept = observed.flops <= budget * EQUAL
    names = ("context", "parameters", "tokens", "flops", "seconds", "loss")
    columns: dict[str, Any] = {name: getattr(observed, name)[kept] for name in names}
    runs, columns["run"] = np.unique(observed.run[kept], return_inverse=True)
    sizes, columns["size"] = np.unique(observed.size[kept], return_inverse=True)
    columns |= {"runs": [observed.runs[i] for i in runs], "sizes": [observed.sizes[i] for i in sizes]}
    points = tuple(point for point, keep in zip(observed.points, kept, strict=True) if keep)
    return replace(observed, points=points, shown=points, **columns)


def measured(observed: Observations, size: int, budget: float) -> tuple[np.ndarray, np.ndarray]:
    """The contexts of a size that reached a budget in FLOPs, ascending, and their losses there, in nats."""
    own = [point for point in observed.points if point.size == observed.sizes[size]]
    at_budget = sorted(cells(tracks(own, "flops"), budget), key=lambda cell: cell.context)
    contexts = np.array([cell.context for cell in at_budget], dtype=np.float64)
    return contexts, np.array([cell.loss for cell in at_budget])


def predicted_loss(analysis: Analysis, at: tuple[float, float, float], flops: float) -> Estimate:
    """The predicted loss of one run, in nats a token, with the variation between runs; ``at``: context, parameters, tokens."""
    log_losses = np.log(analysis.ensemble.loss(*(np.array([x]) for x in at)))
    log_losses = analysis.beyond(log_losses, flops / float(analysis.observed.flops.max()))
    samples = one_run(analysis, log_losses)
    return ensemble_estimate(analysis.law.loss(*at)[0], np.exp(samples), analysis.confidence)


def one_run(analysis: Analysis, log_losses: np.ndarray) -> np.ndarray:
    """(R, ...) ln losses of the ensemble with a random effect of one new run each, to compare with a measurement.

    The effects are the mean deviations of the sweep's runs from the law, widened by their leverage.
    """
    observed, chosen = analysis.observed, analysis.chosen
    wide = widened_residuals(chosen.form, chosen.theta[0], data_of(observed), observed.run)
    effects = np.array([wide[observed.run == run].mean() for run in range(len(observed.runs))])
    draw, count = np.random.default_rng(analysis.seed + 1), len(log_losses)
    drawn = effects[draw.integers(len(effects), size=count)] * draw.choice([-1.0, 1.0], size=count)
    return np.asarray(log_losses + drawn.reshape(-1, *[1] * (log_losses.ndim - 1)))


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


def prior(trends: list[Trend]) -> Powers:
    """The mean and the spread of the powers of some sweeps; of the size's, of those with several sizes."""

    def normal(powers: list[float]) -> tuple[float, float]:
        return fmean(powers), max(LEAST, float(np.std(powers, ddof=1)))

    size = [float(trend.mean[2]) for trend in trends if np.ptp(trend.measured[:, 0]) > 0]
    powers = Powers(budget=normal([float(trend.mean[1]) for trend in trends]))
    return powers._replace(size=normal(size)) if len(size) > 1 else powers


def compare(observed: Observations, median_document: float | None, powers: Powers) -> list[dict[str, Any]]:
    """Each size of a sweep at each larger budget: what was measured, and the answer, error and regret of each way.

    Args:
        powers: the prior of the trend, from other sweeps.
    """
    budgets, rows = budgets_of(observed), list[dict[str, Any]]()
    shown = budgets[SHOWN - 1]
    cheap = up_to(observed, shown)
    trend, analysis, cost = fit_trend(cheap, "flops", powers), Analysis(cheap), measured_cost(cheap, "flops")
    bounds = float(cheap.context.min()), float(cheap.context.max())
    for size, parameters in zip(cheap.sizes, cheap.size_parameters.tolist(), strict=True):
        before = measured(observed, cheap.sizes.index(size), shown)
        for budget in budgets[SHOWN:]:
            contexts, losses = measured(observed, observed.sizes.index(size), budget)
            if len(contexts) < len(before[0]):
                continue  # not all contexts have this budget
            laws = (
                best_context(law, cost, budget, parameters, bounds).context for law in (analysis.law, analysis.ensemble)
            )
            answers = {
                "planner": (trend.context(budget, parameters), trend.samples(budget, np.full(SAMPLES, parameters))),
                "law": tuple(laws),
            }
            ways = {way: float(np.clip(answer, *bounds).item()) for way, (answer, _) in answers.items()} | {
                "last best": float(before[0][before[1].argmin()]),
                "parabola": parabola(*before),
            }
            if median_document is not None:
                ways["median document"] = float(np.clip(median_document, contexts[0], contexts[-1]))
            truth = vertex(contexts, losses)
            intervals = {way: np.quantile(samples, [0.05, 0.95]).tolist() for way, (_, samples) in answers.items()}
            row: dict[str, Any] = {"size": size, "flops": float(budget), "measured": truth, "answers": ways}
            row["errors"] = {way: float(np.exp(abs(np.log(value / truth)))) for way, value in ways.items()}
            row["regrets"] = {way: regret(contexts, losses, value) for way, value in ways.items()}
            row["intervals"] = intervals
            row["inside"] = {way: bool(low <= truth <= high) for way, (low, high) in intervals.items()}
            rows.append(row)
    return rows


def losses(observed: Observations) -> list[dict[str, Any]]:
    """The loss of each run beyond the budgets shown, three of them and four: predicted, with its 90% interval, and measured."""
    budgets, rows = budgets_of(observed), list[dict[str, Any]]()
    for shown in budgets[SHOWN - 1 : -1]:
        analysis = Analysis(up_to(observed, shown))
        for i in np.flatnonzero(observed.flops > shown * EQUAL):
            at, flops = (observed.context[i], observed.parameters[i], observed.tokens[i]), float(observed.flops[i])
            loss, found = predicted_loss(analysis, at, flops), float(observed.loss[i])
            low, high = loss.limits
            row = {"size": observed.sizes[observed.size[i]], "context": float(at[0]), "flops": flops, "shown": shown}
            row |= {"predicted": loss.value, "interval": [low, high], "measured": found}
            rows.append(row | {"inside": bool(low <= found <= high)})
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


def ahead(rows: list[dict[str, Any]], way: str, what: str) -> Estimate:
    """By how much the planner's errors (of ln l) or regrets (nats) are below a way's: the mean over sweeps."""

    def value(row: dict[str, Any], name: str) -> float:
        return float(np.log(row["errors"][name]) if what == "errors" else row["regrets"][name])

    by_sweep: dict[str, list[float]] = {}
    for row in rows:
        by_sweep.setdefault(row["sweep"], []).append(value(row, way) - value(row, "planner"))
    return mean_estimate(np.array([fmean(values) for values in by_sweep.values()]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=Path, default=SWEEPS, help="folder of the tables")
    folder = parser.parse_args().sweeps
    tables = {path.stem: read_table(path) for path in sorted(folder.glob("*.json"))}
    trends = {name: fit_trend(observed, "flops", VAGUE) for name, observed in tables.items()}
    rows, predicted, refused = [], list[dict[str, Any]](), {}
    for name, observed in tables.items():
        document = json.loads((folder / f"{name}.json").read_text())["median_document"]
        others = prior([trend for other, trend in trends.items() if other != name])
        try:
            rows += [{"sweep": name, **row} for row in compare(observed, document, others)]
            predicted += [{"sweep": name, **row} for row in losses(observed)]
        except DataError as error:
            refused[name] = str(error)
    for row in rows:
        answers = ", ".join(f"{way} {answer:.0f}" for way, answer in row["answers"].items())
        print(f"{row['sweep']} {row['size']} {row['flops']:.2g} FLOPs: {row['measured']:.0f}; {answers}")
    ways = summary(rows)
    lead = {way: {what: ahead(rows, way, what) for what in ("errors", "regrets")} for way in ways if way != "planner"}
    for way, numbers in ways.items():
        print(f"{way:>16}: " + ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in numbers.items()))
    for way, by in lead.items():
        print(
            f"{way:>16} minus planner, over sweeps: ln of the error {by['errors']:+.3f}, regret {by['regrets']:+.4f} nats"
        )
    reaches = sorted({round(row["flops"] / row["shown"], 1) for row in predicted})
    for reach in reaches:
        of_reach = [row for row in predicted if round(row["flops"] / row["shown"], 1) == reach]
        errors = [np.log(row["predicted"] / row["measured"]) for row in of_reach]
        print(
            f"losses at {reach} times the largest budget shown: {sum(row['inside'] for row in of_reach)} of {len(of_reach)} in "
            f"90% intervals; error of ln L {np.mean(errors):+.4f}, root mean square {np.sqrt(np.mean(np.square(errors))):.4f}"
        )
    powers = {name: trend.mean[1:].tolist() for name, trend in trends.items()}
    together = prior(list(trends.values()))
    print(f"{len(rows)} cases; refused: {', '.join(refused) or 'none'}; powers of all sweeps: {together}")
    if folder == SWEEPS:
        found = {"powers": powers, "prior": together._asdict(), "ways": ways, "ahead": as_json(lead), "cases": rows}
        found |= {"losses": predicted, "refused": refused}
        publish("planner", {"shown_budgets": SHOWN, **found})


if __name__ == "__main__":
    main()
