"""Comparisons as tables, the same on the terminal and on pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from contextwise.base.estimates import count, duration, written
from contextwise.base.tables import Cell, Column, Row, Table, terminal
from contextwise.comparison.budgets import Budget
from contextwise.comparison.comparison import Comparison
from contextwise.comparison.curves import ComparedCurve
from contextwise.comparison.forgetting import Change, Forgetting, Point
from contextwise.comparison.ledger import Ledger
from contextwise.evaluation.measures.curve.readings import visible

MID_SCHEDULE = (
    "* Interpolated in the middle of a schedule: the run continued after this point with a learning rate that had not come "
    "down yet, which counts against it."
)
VALIDATIONS = 6
"""Validations of a run that the table on forgetting shows; the JSON has all."""


def comparison_tables(comparison: Comparison) -> RenderableType:
    """Models, differences, equal budgets and notes, one below the other."""
    budgets = budget_tables(comparison)
    return terminal(
        model_table(comparison),
        *(f"{difference.verdict}." for difference in comparison.differences),
        "",
        *budgets,
        *(f"Note: {note}" for note in comparison.notes),
    )


def model_table(comparison: Comparison, series: Mapping[str, int] = {}) -> Table:
    """A row for each model: parameters, losses, what training took, what generation takes.

    Args:
        series: number of each model's colour on a page.
    """
    rows = [
        Row(
            [
                (group.name, count(group.parameters) + _seeds(group.seeds)),
                group.loss,
                group.perplexity,
                group.bits_per_byte,
                (written(group.training_tokens, "count"), written(group.training_seconds, "duration")),
                group.tokens_per_second,
                group.ms_per_token,
            ],
            series.get(group.name),
            bold=group is comparison.best,
        )
        for group in comparison.groups
    ]
    return Table(
        f"{comparison.documents:,} documents, {comparison.tokens:,} tokens; 95% intervals",
        [
            Column("model,\nparameters", width=16),
            Column("loss\n(nats/token)", "estimate", ".4f", interval="below"),
            Column("perplex-\nity", "estimate", interval="none"),
            Column("bits/\nbyte", "estimate", ".4f", interval="none"),
            Column("trained\non, in"),
            Column("train\ntok/s", "count"),
            Column("ms/new\ntoken", "estimate", ".2f"),
        ],
        rows,
    )


def difference_table(comparison: Comparison) -> Table:
    """A row for each pair: the difference, and on how many of the documents the first is better."""
    rows: list[list[Cell]] = [
        [
            f"{difference.group} − {difference.reference}",
            difference.difference,
            difference.documents_lower,
            f"{difference.better} is better"
            if difference.better
            else "no significant difference"
            if difference.difference.has_interval
            else "no interval",
        ]
        for difference in comparison.differences
    ]
    columns = [
        Column("pair"),
        Column("difference", "difference", interval="own"),
        Column("documents with a lower loss", "percent", ".0%"),
        Column("result"),
    ]
    title = f"Held-out loss, {comparison.unit}, first minus second on the same documents."
    return Table(title, columns, rows)


def budget_tables(comparison: Comparison, series: Mapping[str, int] = {}) -> list[Table]:
    """Validation losses at equal training time, and at equal training tokens; ``series`` as in :func:`model_table`."""
    tables = [_budget_table(budget, comparison.reference, series) for budget in comparison.budgets]
    starred = [any(row.mid_schedule for row in budget.rows) for budget in comparison.budgets]
    if any(starred):
        last = len(starred) - 1 - starred[::-1].index(True)
        tables[last] = Table(tables[last].title, tables[last].columns, tables[last].rows, [MID_SCHEDULE])
    return tables


def _budget_table(budget: Budget, reference: str, series: Mapping[str, int]) -> Table:
    at = duration(budget.at) if budget.kind == "seconds" else f"{count(budget.at)} tokens"
    rows = [
        Row(
            [row.group, f"{row.loss:.4f}{'*' if row.mid_schedule else ' '}", row.difference],
            series.get(row.group),
        )
        for row in budget.rows
    ]
    difference = Column(f"minus {reference}", "difference", missing="")
    return Table(f"validation loss after {at} of training", ["model", "nats/token", difference], rows)


def ledger_table(ledger: Ledger) -> Table:
    """What each objective read, was asked for, spent and reached."""
    rows = [
        [
            (row.name, count(row.parameters) + _seeds(row.seeds)),
            row.input_tokens,
            row.target_tokens,
            row.flops,
            row.loss,
            row.at["tokens"],
            row.at["flops"],
        ]
        for row in ledger.rows
    ]
    columns = [
        Column("run,\nparameters", width=14),
        Column("read", "integer", ",.0f"),
        Column("asked", "integer", ",.0f"),
        Column("FLOPs", "estimate", ".2e"),
        Column("nats/\ntarget", "estimate", ".4f"),
        Column(f"at\n{count(ledger.budgets['tokens'])}", "estimate", ".4f"),
        Column(f"at {ledger.budgets['flops']:.1e}\nFLOPs", "estimate", ".4f"),
    ]
    note = "Note: nats per target of different objectives are not comparable: each predicts other tokens, from other tokens."
    return Table("for each training step", columns, rows, [note])


def curves_table(curves: list[ComparedCurve]) -> Table:
    """Average and best-context loss of each curve, with the differences to the first."""
    rows: list[Row] = []
    for curve in curves:
        below = "" if curve.below is None else f"{curve.below[0]} of {curve.below[1]}"
        bins = visible(curve.best_from, curve.best_to)
        rows.append(Row([Path(curve.name).name, curve.context, curve.average, curve.best, bins, below]))
        if curve.average_difference is not None:
            differences = curve.average_difference, curve.best_difference
            rows.append(Row(["  minus the first", "", *differences, "", ""], kind="difference"))
    columns = [
        Column("model"),
        Column("measured\nto", "integer"),
        Column("average\nloss", "estimate", ".4f", interval="none"),
        Column("best-context\nloss", "estimate", ".4f", interval="none"),
        Column("at"),
        Column("lower\nbins"),
    ]
    return Table("", columns, rows)


def forgetting_tables(forgetting: Forgetting) -> RenderableType:
    """Losses before and after on both corpora, with what is significant; losses during training; notes."""
    parts: list[Any] = []
    for comparison, name, meaning in (
        (forgetting.old, "old", "forgetting"),
        (forgetting.new, "new", "change"),
    ):
        parts += [_domain_table(comparison, name, meaning, forgetting.changes)]
        parts += [f"{difference.verdict}." for difference in comparison.differences]
        parts += [""]
    during = [change for change in forgetting.changes if change.during]
    if during:
        parts.append(_during_table(during))
    return terminal(*parts, *(f"Note: {note}" for note in forgetting.notes))


def _domain_table(comparison: Comparison, name: str, meaning: str, changes: Sequence[Change]) -> Table:
    replay = {change.group: change.replay for change in changes}
    since = {d.group: d.difference for d in comparison.differences if d.reference == comparison.reference}
    rows = [
        [
            (group.name, _kind(comparison, group.name, replay.get(group.name)) + _seeds(group.seeds)),
            group.loss,
            since.get(group.name),
        ]
        for group in comparison.groups
    ]
    columns = [
        Column("model", width=16),
        Column("loss\n(nats/token)", "estimate"),
        Column(f"{meaning}\n(after − before)", "difference", missing=""),
    ]
    counts = f"{comparison.documents:,} documents, {comparison.tokens:,} tokens"
    corpus = comparison.corpus
    title = f"{name}: {corpus['path']}, {corpus['split']}; {counts}; 95% intervals"
    return Table(title, columns, rows)


def _kind(comparison: Comparison, group: str, replay: float | None) -> str:
    if group == comparison.reference:
        return "before"
    return "no replay" if replay is None else f"{replay:.3g} replayed"


def _during_table(changes: Sequence[Change]) -> Table:
    rows = [
        [change.group if i == 0 else "", point.step, point.tokens, point.old, point.new]
        for change in changes
        for i, point in enumerate(_some(change.during))
    ]
    columns = [
        Column("model"),
        Column("step", "integer", "d"),
        Column("trained on", "count"),
        Column("old", "estimate"),
        Column("new", "estimate"),
    ]
    return Table("validation losses while training", columns, rows)


def _some(points: list[Point]) -> list[Point]:
    """The first, the last and some between."""
    count = min(VALIDATIONS, len(points))
    return [points[round(i * (len(points) - 1) / max(1, count - 1))] for i in range(count)]


def _seeds(seeds: Sequence[Any]) -> str:
    return f", {len(seeds)} seeds" if len(seeds) > 1 else ""
