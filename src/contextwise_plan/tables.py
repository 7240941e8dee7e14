"""Terminal tables of scaling plans, fitted laws and their hindcasts."""

import re
from typing import Any

import numpy as np
from rich.console import RenderableType

from contextwise.base.estimates import Estimate, count, counted, duration, written
from contextwise.base.tables import Cell, Column, Row, Table, terminal
from contextwise_plan.scaling.analysis import Analysis
from contextwise_plan.scaling.hindcast import Hindcast
from contextwise_plan.scaling.next_runs import SHARE, Candidate
from contextwise_plan.scaling.planning import RIVALS, Plan
from contextwise_plan.scaling.trend import METHOD

SHOWN_IN_NOISE = 4
"""Contexts; of more of them the first two and the last are shown."""
CONTENT_ID = re.compile(r"-[0-9a-f]{8}$")
"""The end of a run's id, without which it has room in a table; within a sweep the rest names the run."""


def plan_tables(plan: Plan, analysis: Analysis) -> RenderableType:
    """The answer, why, and what it does not say."""
    context, lost = plan.rounded
    parts: list[Any] = [_answer(plan, analysis)]
    parts += [plan.trend] if plan.trend else []
    costs = f"costs {lost:.4f} nats more" if lost > 0 else f"costs nothing by the law ({-lost:.4f} nats less)"
    parts.append(f"The nearest power of two, {context}, {costs}.")
    if plan.shapes:
        named = ", or ".join(f"{shape.name} ({count(shape.parameters)})" for shape in plan.shapes)
        parts.append(f"Nearest model that can be built: {named}.")
    return terminal(*parts, *(f"Note: {note}" for note in plan.notes))


def detail_tables(plan: Plan, analysis: Analysis) -> RenderableType:
    """What was measured, the sizes, the optima of the laws alone, the next run, the law and its residuals."""
    parts: list[Any] = ["", *(f"Measured: {finding}" for finding in plan.measured)]
    if plan.best.parameters is not None:
        parts += ["", _sizes(plan)]
    if plan.rivals:
        parts += ["", _rivals(plan, analysis)]
    if plan.next_runs:
        parts += ["", _next_runs(plan.next_runs)]
    return terminal(*parts, law_tables(analysis))


def law_tables(analysis: Analysis) -> RenderableType:
    """The points that were read, the forms compared, the parameters of the chosen one, and the residuals of each run."""
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
        errors = [1000 * error for error in (score.fitted, score.error, score.held_out_budgets)]
        cells: list[Cell] = [score.form.name + sign, score.form.formula, len(score.form.parameters), *errors]
        rows.append(Row(cells, bold=chosen))
    formula = "L(l, N, D)" if len(observed.sizes) > 1 else "L(l, D)"
    columns = [Column("form"), Column(formula, align="left"), Column("num-\nbers", "integer")]
    columns += [Column(head, "estimate", ".1f") for head in ("seen", "unseen\nruns", "unseen\nbudgets")]
    numbers = []
    for name, value in analysis.parameters().items():
        bound = "at a bound" if name in analysis.at_bounds else ""
        numbers.append([name, f"{value.value:.4g}", value.interval(".3g"), bound])
    tables: list[Any] = ["", Table(title, columns, rows), Table("", ["", "value", "interval", ""], numbers)]
    preference = analysis.preference
    return terminal(*tables, *([preference.sentence()] if preference else []), "", _residuals(analysis))


def _residuals(analysis: Analysis) -> Table:
    observed, residuals = analysis.observed, 1000 * analysis.residuals
    rows = []
    for run, name in enumerate(observed.runs):
        mine = np.flatnonzero(observed.run == run)
        values = residuals[mine[observed.tokens[mine].argsort()]]
        rows.append([name, len(mine), values.mean(), values.std(), values[0], values[-1]])
    forms = {"mean": "+.1f", "spread": ".1f", "first": "+.1f", "last": "+.1f"}
    errors = [Column(name, "estimate", form) for name, form in forms.items()]
    columns = [Column("run"), Column("points", "integer"), *errors]
    title = "Residuals: ln of measured over fitted loss, in thousandths, along each run:"
    return Table(title, columns, rows)


def hindcast_tables(check: Hindcast) -> RenderableType:
    """Predicted against measured: optima, runs, and a verdict in words."""
    heading = (
        f"Check: {check.shown} points up to {check.above:.2g} FLOPs are fitted, and {check.hidden} above, up to "
        f"{check.beyond:.3g} times that, are predicted."
    )
    optima: list[Any] = ["No size has a hidden budget that all its contexts reached: no optimum is checked."]
    if check.optima:
        right, at_end = (sum(getattr(row, name) for row in check.optima) for name in ("inside", "at_end"))
        text = (
            f"{right} of {len(check.optima)} measured best contexts are inside the interval, plus or minus half a step of the "
            "contexts (* outside). Below each: the contexts within its noise, as on the sweep's page. "
            "Before: the best at the largest budget that was shown. Losses are at the measured best context."
        )
        if at_end:
            text += (
                f" {at_end} of the measured ones {'is' if at_end == 1 else 'are'} the shortest or longest that was trained: "
                "the optimum may be beyond, and the prediction was restricted to these contexts."
            )
        guessed = [row.size for row in check.optima if row.predicted.method != METHOD]
        if guessed:
            text += (
                f" The budgets shown do not bracket the best context of {', '.join(guessed)}: what is predicted there is the "
                "law's alone."
            )
        optima = [_optima(check), text]
    inside = sum(run.inside for run in check.runs)
    verdict = (
        f"{inside} of {len(check.runs)} losses are inside their {check.analysis.confidence:.0%} intervals for one run (* "
        f"outside); error {100 * check.error:.2f}% of the loss"
    )
    if check.unchanged is not None:
        verdict += f" ({100 * check.unchanged:.2f}% if each run's last shown loss is the prediction)"
    return terminal(heading, "", *optima, "", _runs(check), f"{verdict}.", *_one_sided(check))


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


def _rivals(plan: Plan, analysis: Analysis) -> Table:
    sized = plan.best.parameters is not None
    rows: list[list[Cell]] = []
    for row in plan.rivals:
        form = row.form + "*" * (row.form == analysis.chosen.form.name)
        rows.append([form, 1000 * row.error, *([row.parameters] if sized else []), row.context, row.loss])
    columns = [Column("form"), Column("error", "estimate", ".1f"), *([Column("size", "count")] if sized else [])]
    columns += [Column("context", "estimate", ".0f"), Column("loss", "estimate", ".4f")]
    return Table(f"Optima of the laws alone, without the trend (up to {RIVALS:g} times the error of *):", columns, rows)


def _next_runs(candidates: list[Candidate]) -> Table:
    sized = candidates[0].parameters_left is not None
    rows = []
    for row in candidates:
        shares = [row.loss_left, *([row.parameters_left] if sized else [])]
        rows.append([row.size, row.context, row.tokens, row.flops, "new" if row.new else "again", *shares])
    columns = [Column("size"), Column("context", "integer", "d"), Column("tokens", "count")]
    columns += [Column("FLOPs", "estimate", ".1e"), Column("")]
    columns += [Column(name, "percent", ".0%") for name in ("loss", *(["size"] if sized else []))]
    title = (
        "One more run that would narrow the answer most: what is left of the width of each interval (from the resamples, "
        f"linearised; runs that cost at most {SHARE:.0%} of the plan, or what the sweep's largest did):"
    )
    return Table(title, columns, rows)


def _optima(check: Hindcast) -> Table:
    rows: list[list[Cell]] = []
    for row in check.optima:
        noise = [str(context) for context in row.within_noise]
        noise = [*noise[:2], "…", noise[-1]] if len(noise) > SHOWN_IN_NOISE else noise
        best = f"{row.measured:.0f}{' ' if row.inside else '*'}", f"({', '.join(noise)})" if noise else ""
        loss = f"{row.predicted_loss.value:.4f}", row.predicted_loss.interval(".3f")
        about = row.size, f"{row.budget:.1e}"
        rows.append([about, row.predicted, best, row.before, loss, row.measured_loss])
    columns = [Column("size,\nFLOPs"), Column("context\npredicted", "estimate", ".0f", interval="below")]
    columns += [Column("context\nmeasured"), Column("context\nbefore", "estimate", ".0f")]
    columns += [Column("loss\npredicted"), Column("loss\nmeasured", "estimate", ".4f")]
    return Table("Best context at the largest budget that all contexts of a size reached:", columns, rows)


def _one_sided(check: Hindcast) -> list[str]:
    """A sentence for each size whose losses are all predicted too low or all too high; four or more, so not by chance."""
    sentences = []
    for size in dict.fromkeys(run.size for run in check.runs):
        off = [100 * (run.predicted.value / run.measured - 1) for run in check.runs if run.size == size]
        if len(off) >= 4 and (max(off) < 0 or min(off) > 0):
            side, (least, most) = "low" if max(off) < 0 else "high", sorted((abs(max(off)), abs(min(off))))
            sentences.append(
                f"All {len(off)} losses of {size} are predicted too {side}, by {least:.2f}% to {most:.2f}%: the law is off in "
                "one direction there, which intervals of single runs do not say."
            )
    return sentences


def _runs(check: Hindcast) -> Table:
    rows: list[list[Cell]] = []
    for run in check.runs:
        predicted, off = run.predicted, 100 * (run.predicted.value / run.measured - 1)
        measured = f"{run.measured:.4f}{' ' if run.inside else '*'}"
        row = f"{predicted.value:.4f} {predicted.interval('.3f')}", measured, f"{written(off, '+.2f')}%"
        rows.append([CONTENT_ID.sub("", run.run), run.flops, *row])
    columns: list[Column | str] = ["run", Column("FLOPs", "estimate", ".1e"), "predicted", "measured", "off"]
    return Table("Last point of each run that went beyond:", columns, rows)
