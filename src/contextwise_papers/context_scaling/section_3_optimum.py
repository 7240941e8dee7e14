"""The training context that is best at each budget, for each model size and over all: context scaling, Section 3."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from contextwise.base.tables import spread
from contextwise.report import Table, written
from contextwise.runset import RunSet
from contextwise.settings import validate
from contextwise.stats import Estimate, plus_minus
from contextwise_papers.claims import Claim, Verdict, above, all_hold, opposite, shown, undecided
from contextwise_papers.item import CorpusMeasure, Item, Outcome
from contextwise_papers.tables import Plot, point, points, table_of
from contextwise_plan.optimum import Landscape, Optimum
from contextwise_plan.sweeps.points import sweep_points
from contextwise_plan.sweeps.recipe import LearningRateRule, SweepRecipe
from contextwise_plan.sweeps.sweep import grid_runs, run_sweep

SHOWN = 6
"""Budgets of the tables."""
_NO_GROWTH = undecided(
    "a best context is known at one budget only, is always the shortest or the longest that was tried, or moves within noise"
)


class OptimalContext(CorpusMeasure, name="optimal_context"):
    """A sweep of model sizes and training contexts, and where the best-context loss is lowest at each budget."""

    name: str = "optimal-context"
    base: dict[str, Any] = Field(description="the runs' recipe; the corpus is the item's")
    grid: dict[str, list[Any]]
    learning_rate: LearningRateRule = "size"
    measurements: int = Field(default=8, ge=2)

    def sweep(self, folder: Path) -> SweepRecipe:
        """The sweep's settings; the learning rate is constant, as in the source."""
        data = {**self.base.get("data", {}), "corpus": str(self.corpus_folder(folder))}
        training = {"schedule": "constant", **self.base.get("training", {})}
        values = {name: getattr(self, name) for name in ("name", "grid", "learning_rate", "measurements")}
        values |= {"base": {**self.base, "data": data, "training": training}, "executor": self.executor}
        values["output"] = str(folder / "sweeps" / self.name)
        return validate(SweepRecipe, values, "the sweep")

    def run_set(self, folder: Path) -> RunSet:
        return RunSet(folder, grid_runs(self.sweep(folder)))

    def measure(self, item: Item, folder: Path) -> Outcome:
        self.prepared(folder)
        sweep = run_sweep(self.sweep(folder))
        planned, runs = sweep.contexts, sweep.paths
        result = Landscape(sweep_points(sweep.path), "flops", planned)
        if not len(result.budgets):
            claim = Claim.of("an optimal context was measured", undecided("nothing was measured"))
            return Outcome([], [claim], {}, runs)
        tables = [losses_table(result, planned), optima_table(result, planned)]
        figures = {"budgets": result.budgets, "contexts": result.contexts, "pairs": result.pairs}
        plots = optimum_plots(result, planned)
        return Outcome(tables, context_claims(result, planned), figures, runs, plots)


def _steps(result: Landscape) -> list[int]:
    """Steps of the tables: evenly over those at which some optimum is decided, else over all."""
    decided = [i for i, optima in enumerate(result.optima) if any(o.decided for o in optima.values())]
    return spread(decided or range(len(result.budgets)), SHOWN)


def losses_table(result: Landscape, planned: dict[str, list[int]]) -> Table:
    """Best-context loss of each size and context at the largest budget whose optimum is known."""
    step = result.last_decided
    best = {size: optimum.cell.context for size, optimum in result.optima[step].items()}
    losses = {}
    for cell in result.cells[step]:
        error = "" if cell.half_width is None else f" ± {cell.half_width:.3f}"
        mark = "*" if best.get(cell.size) == cell.context else ""
        losses[cell.size, cell.context] = f"{cell.loss:.3f}{error}{mark}"
    contexts = sorted({context for own in planned.values() for context in own})
    return table_of(
        f"Best-context loss at {result.budgets[step]:.2e} FLOPs, nats per token, ± its 95% interval (* the lowest of a size)",
        [("training context", ","), *planned],
        [[context, *(losses.get((size, context)) for size in planned)] for context in contexts],
    )


def optima_table(result: Landscape, planned: dict[str, list[int]]) -> Table:
    """The best context of each size, and the best pair of all, over the budget; smoothed as in footnote 5."""
    rows = []
    for step in _steps(result):
        pair = result.pairs[step]
        contexts = (result.contexts[size][step] or "not known" for size in planned)
        overall = "not known" if pair is None else f"{pair[0]}, {pair[1]:,}"
        rows.append([f"{result.budgets[step]:.2e} FLOPs", *contexts, overall])
    title = "Best training context by budget: the most common one in a window; known where its neighbours were measured"
    return table_of(title, ["budget", *((size, ",") for size in planned), "of all"], rows)


def context_claims(result: Landscape, planned: dict[str, list[int]]) -> list[Claim]:
    """The claims of Section 3: U-shaped curves, and an optimum that grows with the budget, more slowly for larger models."""
    step = result.last_decided
    edge = undecided("the lowest loss is at the edge of what was tried, or beside what was not measured")
    shapes = {
        size: _ends_are_worse(optimum) if optimum.decided and not optimum.edge else edge
        for size, optimum in result.optima[step].items()
    }
    growth = {size: _growth(result, size, planned[size]) for size in planned}
    grows = [_NO_GROWTH if each is None else each.verdict(each.doublings > 0) for each in growth.values()]
    pairs = [pair for pair in result.pairs if pair is not None]
    best = [f"{size}: best at {result.optima[step][size].cell.context:,}" for size in shapes]
    contexts = [f"{size}: {_listed(result.contexts[size])}" for size in planned]
    words = {
        size: "undecided" if each is None else f"{written(each.doublings, '+.1f')} doublings"
        for size, each in growth.items()
    }
    doublings = [f"{size}: {word}" for size, word in words.items()]
    first_to_last = "" if not pairs else "from {}, {:,} to {}, {:,}".format(*pairs[0], *pairs[-1])
    claims = {
        "too short and too long a training context are both worse than one between them":
            (all_hold(shapes.values()), "; ".join(best)),
        "the best training context grows with the budget, at every model size": (all_hold(grows), "; ".join(contexts)),
        "more slowly for larger models": (_slower(list(growth.values())), "; ".join(doublings)),
        "over all sizes, both the model and its context grow with the budget":
            (_both_grow(result, list(planned)), first_to_last),
    }  # fmt: skip
    seeds = min((cell.runs for cell in result.cells[step]), default=0)
    return [Claim.of(text, *decided).over_seeds(seeds) for text, decided in claims.items()]


def _ends_are_worse(best: Optimum) -> Verdict:
    """Whether the losses of the shortest and the longest context are significantly higher than the lowest."""
    verdict = all_hold(above(best.differences[end]) for end in best.ends if end in best.differences)
    return replace(verdict, comparisons=len(best.differences))  # it was chosen among all


class _Growth(NamedTuple):
    """A change of the best context: doublings from the first to the last budget, and the differences that show it.

    ``comparisons``: the others among which the best contexts were chosen.
    """

    doublings: float
    shown_by: list[Estimate]
    comparisons: int

    def verdict(self, holds: bool) -> Verdict:
        """A claim about the change that is right or wrong if there is this change; undecided unless all differences show it."""
        return _if_shown(self.shown_by, holds, self.comparisons)


def _if_shown(differences: list[Estimate], holds: bool, comparisons: int) -> Verdict:
    """The verdict ``holds`` where all differences are above zero, by their intervals; else undecided."""
    verdict = shown(all_hold(above(difference) for difference in differences))
    return replace(verdict if holds else opposite(verdict), comparisons=comparisons)


def _growth(result: Landscape, size: str, tried: list[int]) -> _Growth | None:
    """The change from the first to the last budget at which the best context is known.

    None if it is known at one budget or none, or always the shortest or the longest that was tried: it may move beyond. A best
    context that moved must be better than the other one at its own budget, at both; one that stayed must be better than all
    longer ones at the last.
    """
    known = [(step, context) for step, context in enumerate(result.contexts[size]) if context is not None]
    contexts = [context for _, context in known]
    if len(known) < 2 or set(contexts) in ({min(tried)}, {max(tried)}):
        return None
    (first, before), (last, after) = known[0], known[-1]
    if before == after:
        others = result.optima[last][size].differences
        return _Growth(0.0, [difference for context, difference in others.items() if context > after], len(others))
    leads = _leads(result, (first, (size, before)), (last, (size, after)))
    chosen_among = sum(len(result.optima[step][size].differences) for step in (first, last))
    return _Growth(float(np.log2(after / before)), leads, chosen_among) if leads else None


def _leads(result: Landscape, first: tuple[int, tuple[str, int]], last: tuple[int, tuple[str, int]]) -> list[Estimate]:
    """How far two best pairs (step, (size, context)) lead each other, each at its own step; empty if one was not measured."""
    both = [result.lead(*first, last[1]), result.lead(*last, first[1])]
    known = [lead for lead in both if lead is not None]
    return known if len(known) == len(both) else []


def _listed(contexts: list[int | None]) -> str:
    known = [context for context in contexts if context is not None]
    changes = [c for i, c in enumerate(known) if i == 0 or c != known[i - 1]]
    return ", ".join(f"{c:,}" for c in changes) or "not known"


def _slower(growth: list[_Growth | None]) -> Verdict:
    """Whether the growth becomes less from size to size."""
    known = [each for each in growth if each is not None]
    if len(known) < len(growth) or len(known) < 2:
        return _NO_GROWTH if len(growth) > 1 else undecided("there is one size")
    steps = np.diff([each.doublings for each in known])
    if (steps == 0).any() and not (steps > 0).any():
        return undecided("it grows by as much at two sizes")
    differences = [difference for each in known for difference in each.shown_by]
    return _if_shown(differences, bool((steps < 0).all()), 0)  # the comparisons of the growth, which count there


def _both_grow(result: Landscape, sizes: list[str]) -> Verdict:
    """Whether best size and best context are larger at the last budget than at the first, each pair better at its own."""
    known = [(step, pair) for step, pair in enumerate(result.pairs) if pair is not None]
    if len({pair for _, pair in known}) < 2:
        return undecided("fewer than two best pairs are known")
    (first, before), (last, after) = known[0], known[-1]
    leads = [] if before == after else _leads(result, (first, before), (last, after))
    if not leads:
        return undecided("the best pairs of the first and the last budget cannot be compared")
    grows = sizes.index(after[0]) > sizes.index(before[0]) and after[1] > before[1]
    return _if_shown(leads, grows, sum(len(result.cells[step]) - 1 for step in (first, last)))


def optimum_plots(result: Landscape, planned: dict[str, list[int]]) -> list[Plot]:
    """Best-context loss over training context at the last known budget, and the best context over the budget."""
    step = result.last_decided
    curves: dict[str, list[dict[str, Any]]] = {}
    for cell in result.cells[step]:
        loss = plus_minus(cell.loss, math.nan if cell.half_width is None else cell.half_width)
        curves.setdefault(cell.size, []).append(point(cell.context, loss))
    budgets = result.budgets.tolist()
    optima = {size: points(dict(zip(budgets, result.contexts[size], strict=True))) for size in planned}
    return [
        Plot(f"At {result.budgets[step]:.2e} FLOPs", "training context",
             "best-context loss, nats per token, ± its 95% interval", curves, logarithmic="x"),
        Plot("Best training context by budget", "training FLOPs", "tokens", {s: p for s, p in optima.items() if p},
             logarithmic="xy"),
    ]  # fmt: skip
