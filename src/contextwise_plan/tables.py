"""Terminal tables of scaling plans and fitted laws."""

from typing import Any

import numpy as np
from rich.console import RenderableType

from contextwise.base.tables import Cell
from contextwise.report import Column, Row, Table, count, counted, duration, terminal, written
from contextwise.stats import Estimate
from contextwise_plan.scaling.analysis import Analysis
from contextwise_plan.scaling.planning import Plan


def plan_tables(plan: Plan, analysis: Analysis) -> RenderableType:
    """The answer, why, and what it does not say."""
    nearest = []
    if plan.rounded is not None:
        context, lost = plan.rounded
        costs = f"costs {lost:.4f} nats more" if lost > 0 else f"costs nothing by the law ({-lost:.4f} nats less)"
        nearest = [f"The nearest power of two, {context}, {costs}."]
    notes = (f"Note: {note}" for note in plan.notes)
    return terminal(*filter(None, [plan.doubt]), _answer(plan, analysis), plan.trend, *nearest, *notes)


def detail_tables(plan: Plan, analysis: Analysis) -> RenderableType:
    """What was measured, the best context of each size, the forms compared, and the chosen law."""
    parts: list[Any] = ["", *(f"Measured: {finding}" for finding in plan.measured)]
    if plan.best.parameters is not None:
        parts += ["", _sizes(plan)]
    observed = analysis.observed
    contexts = len(np.unique(observed.context))
    title = (
        f"The law: {len(observed)} points of {len(observed.runs)} runs, {counted(len(observed.sizes), 'model size')}, "
        f"{contexts} training contexts; {observed.left_out} early points left out. "
        f"{analysis.confidence:.0%} intervals over {len(analysis.ensemble.theta)} resamples of whole runs. Errors are those "
        "of ln L, in thousandths. * is chosen, the simplest that held-out runs do not distinguish from the best; + are not "
        "distinguished from it either, and take part in the intervals of the plan."
    )
    rows = []
    for score in analysis.scores:
        chosen = score is analysis.chosen
        sign = "*" if chosen else "+" if any(score is tied for tied in analysis.tied) else ""
        errors = [1000 * error for error in (score.fitted, score.error)]
        cells: list[Cell] = [score.form.name + sign, score.form.formula, len(score.form.parameters), *errors]
        rows.append(Row(cells, bold=chosen))
    formula = "L(l, N, D)" if len(observed.sizes) > 1 else "L(l, D)"
    columns = [Column("form"), Column(formula, align="left"), Column("num-\nbers", "integer")]
    columns += [Column(head, "estimate", ".1f") for head in ("seen", "unseen\nruns")]
    numbers = []
    for name, value in analysis.parameters().items():
        bound = "at a bound" if name in analysis.at_bounds else ""
        numbers.append([name, f"{value.value:.4g}", value.interval(".3g"), bound])
    law = [Table(title, columns, rows), Table("", ["", "value", "interval", ""], numbers)]
    return terminal(*parts, "", *law)


def _answer(plan: Plan, analysis: Analysis) -> Table:
    best, times = plan.best, plan.extrapolation

    def row(name: str, value: Estimate, form: str, factor: str) -> list[Any]:
        against = f"{times[factor]:.2g} x" if factor in times else None
        return [name, written(value.value, form), value.interval(form), against]

    size: list[Any] = ["model size", str(best.size), "given", None]
    if best.parameters is not None:
        named = f" ({best.size})" if best.size else ""
        size = row(f"model size{named}", best.parameters, "count", "parameters")
    rows = [
        size,
        row("training context", best.context, ".0f", "context"),
        row("tokens", best.tokens, "count", "tokens"),
        row("best-context loss, nats", best.loss, ".4f", ""),
    ]
    columns = ["", "recommended", f"{analysis.confidence:.0%} interval", "of the largest"]
    spent = f"{times['flops']:.2g} x the largest run's"
    if plan.budget.unit == "flops":
        spent += f"; {duration(plan.seconds)} on the sweep's machine"
    else:
        spent = f"{plan.flops:.3g} FLOPs, {spent}"
    return Table(f"Plan for {plan.budget.description} ({spent}).", columns, rows)


def _sizes(plan: Plan) -> Table:
    rows: list[list[Cell]] = []
    for row in plan.each_size:
        size = f"{row.size} ({count(row.parameters.value)})" if row.parameters else str(row.size)
        rows.append([size, row.context, row.tokens.value, f"{row.loss.value:.4f} {row.loss.interval('.3f')}"])
    context, tokens = Column("context", "estimate", ".0f"), Column("tokens", "count")
    title = "Best context of each size of the sweep, at this budget:"
    return Table(title, ["size", context, tokens, "loss"], rows)
