"""Comparisons as tables that read well in 80 columns."""

from pathlib import Path

from rich import box
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from contextwise.base.estimates import Estimate
from contextwise.comparison.budgets import Budget
from contextwise.comparison.comparison import Comparison
from contextwise.comparison.curves import ComparedCurve
from contextwise.comparison.ledger import Ledger
from contextwise.evaluation.measures.curve.tables import visible
from contextwise.evaluation.tables import count, duration, interval, known, number

MID_SCHEDULE = (
    "* Interpolated in the middle of a schedule: the run trained on after this point, its learning rate had "
    "not come down yet, and that counts against it."
)


def comparison_tables(comparison: Comparison) -> RenderableType:
    """Groups, differences, equal budgets and notes, one below the other."""
    parts: list[RenderableType] = [_groups_table(comparison)]
    parts += [Padding(Text(f"{difference.verdict}."), (0, 0, 0, 1)) for difference in comparison.differences]
    parts += [""]
    parts += [_budget_table(budget, comparison.reference) for budget in comparison.budgets]
    if any(row.mid_schedule for budget in comparison.budgets for row in budget.rows):
        parts.append(Padding(Text(MID_SCHEDULE), (0, 0, 0, 1)))
    parts += [Padding(Text(f"Note: {note}"), (0, 0, 0, 1)) for note in comparison.notes]
    return Stack(*parts)


def _groups_table(comparison: Comparison) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f" {comparison.documents:,} documents, {comparison.tokens:,} tokens; 95% intervals",
        title_justify="left",
    )
    table.add_column("model,\nparameters", overflow="fold", min_width=16)
    columns = ["loss\n(nats/token)", "perplex-\nity", "bits/\nbyte"]
    columns += ["trained\non, in", "train\ntok/s", "ms/new\ntoken"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for group in comparison.groups:
        seeds = f", {len(group.seeds)} seeds" if len(group.seeds) > 1 else ""
        table.add_row(
            f"{group.name}\n{count(group.parameters)}{seeds}",
            f"{group.loss.value:.4f}\n{interval(group.loss.low, group.loss.high)}",
            number(group.perplexity.value),
            known(group.bits_per_byte.value if group.bits_per_byte else None, lambda value: f"{value:.4f}"),
            f"{known(group.training_tokens, count)}\n{known(group.training_seconds, duration)}",
            known(group.tokens_per_second, count),
            known(group.ms_per_token, lambda value: f"{value:.2f}"),
        )
    return table


def _budget_table(budget: Budget, reference: str) -> Table:
    at = duration(budget.at) if budget.kind == "seconds" else f"{count(budget.at)} tokens"
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f" validation loss after {at} of training",
        title_justify="left",
    )
    table.add_column("model", overflow="fold")
    table.add_column("nats/token", justify="right")
    table.add_column(f"minus {reference}", justify="right")
    for row in budget.rows:
        star = "*" if row.mid_schedule else " "
        table.add_row(row.group, f"{row.loss:.4f}{star}", difference_cell(row.difference))
    return table


def ledger_table(ledger: Ledger) -> RenderableType:
    """What each objective read, was asked for, spent and reached."""
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=" for each training step", title_justify="left"
    )
    table.add_column("run,\nparameters", overflow="fold", min_width=14)
    at = f"at\n{count(ledger.budgets['tokens'])}", f"at {ledger.budgets['flops']:.1e}\nFLOPs"
    for column in ("read", "asked", "FLOPs", "nats/\ntarget", *at):
        table.add_column(column, justify="right", no_wrap=True)
    for row in ledger.rows:
        seeds = f", {len(row.seeds)} seeds" if len(row.seeds) > 1 else ""
        table.add_row(
            f"{row.name}\n{count(row.parameters)}{seeds}",
            f"{row.input_tokens:,.0f}",
            f"{row.target_tokens:,.0f}",
            f"{row.flops:.2e}",
            f"{row.loss:.4f}",
            *(known(row.at[kind], lambda value: f"{value:.4f}") for kind in ("tokens", "flops")),
        )
    return Stack(
        table,
        Padding(
            Text(
                "Note: a nat per target of one objective is no nat of another: each predicts other tokens, from other tokens."
            ),
            (0, 0, 0, 1),
        ),
    )


def difference_cell(difference: Estimate | None) -> str:
    """A signed difference with its interval; empty for None."""
    if difference is None:
        return ""
    ends = "" if difference.low is None else f" [{difference.low:+.4f}, {difference.high:+.4f}]"
    return f"{difference.value:+.4f}{ends}"


def curves_table(curves: list[ComparedCurve]) -> Table:
    """Average and best-context loss of each curve, with the differences to the first below them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold")
    for name in ("measured\nto", "average\nloss", "best-context\nloss", "at", "lower\nbins"):
        table.add_column(name, justify="right")
    for curve in curves:
        average, best = f"{curve.average.value:.4f}", f"{curve.best.value:.4f}"
        if curve.average_difference is not None and curve.best_difference is not None:
            average += f"\n{_difference(curve.average_difference)}"
            best += f"\n{_difference(curve.best_difference)}"
        table.add_row(
            Path(curve.name).name,
            f"{curve.context:,}",
            average,
            best,
            visible(curve.best_from, curve.best_to),
            "" if curve.below is None else f"{curve.below[0]} of {curve.below[1]}",
        )
    return table


def _difference(found: Estimate) -> str:
    ends = "" if found.low is None or found.high is None else f"\n[{found.low:+.4f}, {found.high:+.4f}]"
    return f"{found.value:+.4f}{ends}"
