"""The comparisons of a trial or of a decision: their table, and the path of their intervals along the seeds."""

import itertools
import textwrap
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from contextwise.base.estimates import Documents, Estimate, count, counted
from contextwise.base.tables import Cell, Column, Table
from contextwise.comparison.decided import READINGS, Comparison, Decided
from contextwise.comparison.sequential import FEWEST_SEEDS
from contextwise.reports import page
from contextwise.reports.page import Page, Plot, Section

if TYPE_CHECKING:
    from contextwise.decisions import Decision  # which imports pandas

ANYTIME = (
    "The interval over seeds is a confidence sequence: it holds after all seeds at once, so you may stop after any of "
    "them and continue later."
)
NO_INTERVAL = f"There is no interval yet; the first one comes after {FEWEST_SEEDS} seeds."
CROSSES: dict[str, Any] = {"mode": "markers", "marker": {"symbol": "x-thin-open", "size": 9, "line": {"width": 2}}}
SHOWN_WHOLE = 6
"""The newest intervals, which a plot shows whole; those of the first seeds are many times as wide."""


def comparison_table(result: Decided) -> Table:
    """A row for each comparison: both readings at the look that decided, or at the newest."""
    rows: list[list[Cell]] = []
    for each in result.comparisons:
        look = each.looks[(each.decided_after or len(each.looks)) - 1]
        name = breakable(each.arm), at_budget(each, result, "")
        random = [None if look.alike else look.random] * bool(result.held_out["documents"])
        rows.append([name, each.decision, look.fixed, *random, look.seeds, look.deviation if look.seeds > 1 else None])
    unit = result.comparisons[0].last.fixed.unit
    documents, tokens = result.held_out["documents"], result.held_out["tokens"]
    on = f"on {counted(documents, 'held-out document')} ({tokens:,} {unit.split()[-1]}s)"
    title = f"Difference to {result.reference}, {unit}, {on if documents else 'over seeds alone'}"
    known = any(look.has_interval for row in rows for look in row if isinstance(look, Estimate))
    title += f", with intervals that all hold together with {result.confidence:.0%} confidence." if known else "."
    about = (
        [textwrap.fill(words.removeprefix("on "), 15) for words in READINGS.values()] if documents else ["difference"]
    )
    readings = [Column(words, "difference", interval="below", missing="the same") for words in about]
    columns = [Column("arm"), Column("decision", align="left", width=10), *readings]
    columns += [Column("seeds", "integer"), Column("std. dev.\nof seeds", "estimate", ".4f")]
    few = max(len(each.looks) for each in result.comparisons) < FEWEST_SEEDS
    return Table(title, columns, rows, [f"Note: {ANYTIME}"] if known else [f"Note: {NO_INTERVAL}"] * few)


def breakable(arm: str) -> str:
    """An arm's name with a space behind each comma, where the lines of a narrow table may end."""
    return arm.replace(",", ", ")


def overview_plots(result: Decided) -> list[Plot]:
    """The difference of each of several arms: its seeds, and the newest interval; nothing for one comparison."""
    if len(result.comparisons) < 2:
        return []
    rows = [
        page.IntervalRow(f"{each.arm}{at_budget(each, result)}", each.last.of(each.documents), _by_seed(each), number)
        for number, each in enumerate(result.comparisons)
    ]
    margins = {each.margin for each in result.comparisons}
    title = page.plain(f"minus {result.reference} ({rows[0].estimate.unit})")
    layout = page.interval_rows(rows, title, [value for margin in margins for value in (margin, -margin)])
    caption = f"Left of zero the loss is lower than that of {result.reference}; the dashed lines are the margin."
    return [Plot("overview", layout, f"Differences to {result.reference}", caption)]


def _by_seed(comparison: Comparison) -> dict[int, float]:
    """Number of a seed, from 1 -> its difference."""
    sums = [look.seeds * look.fixed.value for look in comparison.looks]
    return {seed: after - before for seed, (before, after) in enumerate(itertools.pairwise([0.0, *sums]), 1)}


def path_plot(comparison: Comparison, number: int, result: Decided) -> Plot:
    """The difference of each seed, and the interval after each, for both readings."""
    by_seed = _by_seed(comparison)
    seeds, own = [*by_seed], [*by_seed.values()]
    beside = [seed - 0.12 for seed in seeds]  # of the intervals, which would hide them
    marks = {"text": [f"seed {seed}" for seed in seeds], **CROSSES}
    traces = [page.scatter(beside, own, None, "%{text}: %{y:+.4f}", name="each seed", **marks)]
    shown: list[Estimate] = []
    alike = all(look.alike for look in comparison.looks if look.fixed.has_interval)
    readings: dict[Documents, str] = {"fixed": "interval"} if alike else READINGS
    for series, (reading, words) in enumerate(readings.items()):
        known = [look for look in comparison.looks if look.of(reading).has_interval]
        estimates = [look.of(reading) for look in known]
        shown += estimates[-SHOWN_WHOLE:]
        if known:
            at = [look.seeds + 0.12 * series for look in known]
            style = {"name": words, "mode": "markers", "error_y": page.error_bars(estimates)}
            values = [estimate.value for estimate in estimates]
            traces.append(page.scatter(at, values, series, "%{y:+.4f}", **style))
    margin = comparison.margin
    name = f"{comparison.arm} − {comparison.reference}{at_budget(comparison, result)}"
    limits = [*own, margin, -margin, *(limit for estimate in shown for limit in estimate.limits)]
    room = 0.05 * (max(limits) - min(limits))
    xaxis = {"title": "seeds", "dtick": max(1, len(own) // 10), "range": [0.5, max(4, len(own)) + 0.5]}
    span = [min(limits) - room, max(limits) + room]
    yaxis = {"title": f"difference, {comparison.last.fixed.unit}", "range": span}
    lines = [page.level(0.0, "solid"), page.level(margin), page.level(-margin)]
    layout = page.figure(traces, xaxis=xaxis, yaxis=yaxis, shapes=lines)
    caption = (
        f"{name}: below zero the loss of {comparison.arm} is lower; the dashed lines are the margin of ± {margin:g}."
    )
    if alike and shown:
        caption += " The interval is the same for these held-out documents and for any text like them."
    if not shown and len(own) < FEWEST_SEEDS:
        caption = f"{name}: {NO_INTERVAL[0].lower()}{NO_INTERVAL[1:]}"
    return Plot(f"path-{number}", layout, f"Interval of {name} after each seed", caption)


def at_budget(comparison: Comparison, result: Decided, before: str = " at ") -> str:
    """`` at 524k tokens``, where there are several budgets."""
    several = len({each.budget for each in result.comparisons}) > 1
    return f"{before}{count(comparison.budget)} tokens" if several else ""


def losses_table(decision: "Decision") -> Table:
    """The loss of each run."""
    seeds = sorted({seed for of in decision.losses.values() for seed in of})
    rows: list[list[Cell]] = [[str(seed), *(of.get(seed) for of in decision.losses.values())] for seed in seeds]
    columns = [Column("seed"), *(Column(arm, "estimate", ".4f") for arm in decision.losses)]
    return Table(f"Losses, {decision.unit}:", columns, rows)


def decision_parts(decision: "Decision") -> list[RenderableType]:
    """What the verb prints: the decisions, their table and the notes."""
    notes = [f"Note: {note}" for note in decision.notes]
    return [*decision.sentences, "", comparison_table(decision), *notes]


def decision_page(decision: "Decision", command: str = "") -> Page:
    """The page of a decision; ``command`` is the command line that makes it again."""
    command = command or f"contextwise.decide(…, {decision.reference!r})"
    paths = [path_plot(each, number, decision) for number, each in enumerate(decision.comparisons)]
    sections = [
        Section("Comparisons", [*overview_plots(decision), comparison_table(decision), *decision.notes]),
        Section("Seed by seed", [*paths, page.details("The numbers", losses_table(decision))]),
        Section("Made with", [page.commands([command])]),
    ]
    return Page(f"Decision {decision.decision}", sections, "", decision.sentences)
