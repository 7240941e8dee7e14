"""Evaluations and comparisons as tables that read well in 80 columns."""

from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from contextwise.evaluation.budgets import Budget
from contextwise.evaluation.comparison import Comparison
from contextwise.evaluation.ledger import Ledger
from contextwise.evaluation.metrics import Estimate

NOT_KNOWN = "–"
MID_SCHEDULE = (
    "* Interpolated in the middle of a schedule: the run trained on after this point, its learning rate had "
    "not come down yet, and that counts against it."
)
MEASURES = {
    "loss": "loss (nats per token)",
    "perplexity": "perplexity",
    "word_perplexity": "word perplexity",
    "byte_perplexity": "byte perplexity",
    "bits_per_byte": "bits per byte",
}


def evaluation_heading(summary: dict[str, Any]) -> Text:
    """What was scored, and how: model, documents, tokens, context."""
    visible = summary["context"] - summary["stride"]
    heading = (
        f"{summary['model']} on {summary['label']}: {summary['documents']:,} documents, "
        f"{summary['tokens']:,} tokens; windows of {summary['context']:,}, stride {summary['stride']:,}: "
        f"each token is predicted from {visible:,} tokens or more, or from all before it in its document."
    )
    if not summary["first_token_scored"]:
        heading += " The corpus has no end-of-text token, so the first token of each document is not scored."
    if summary["documents"] == 1:
        heading += " One document allows no interval."
    return Text(heading)


def evaluation_table(summary: dict[str, Any], measures: dict[str, str] = MEASURES) -> Table:
    """The measures of one evaluation, from its summary; ``measures``: key there -> what it is called here."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("95% interval", justify="right")
    for key, name in measures.items():
        measure = summary[key]
        if measure is None or measure["value"] is None:
            table.add_row(name, NOT_KNOWN, NOT_KNOWN)
            continue
        table.add_row(name, number(measure["value"]), interval(measure["low"], measure["high"]))
    return table


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
            _or(group.bits_per_byte.value if group.bits_per_byte else None, lambda value: f"{value:.4f}"),
            f"{_or(group.training_tokens, count)}\n{_or(group.training_seconds, duration)}",
            _or(group.tokens_per_second, count),
            _or(group.ms_per_token, lambda value: f"{value:.2f}"),
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
            *(_or(row.at[kind], lambda value: f"{value:.4f}") for kind in ("tokens", "flops")),
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


def number(value: float) -> str:
    """A measure with about five significant digits."""
    if value < 100:
        return f"{value:.4f}" if value < 10 else f"{value:.3f}"
    return f"{value:,.1f}" if value < 1e5 else f"{value:.3e}"


def interval(low: float | None, high: float | None) -> str:
    """``[low, high]``, or a dash where there is none."""
    return NOT_KNOWN if low is None or high is None else f"[{number(low)}, {number(high)}]"


def count(value: float) -> str:
    """A count in three digits: 940, 12.3k, 8.19M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds as people say them: 48 s, 12.5 min, 3.2 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _or(value: float | None, shown: Callable[[float], str]) -> str:
    return NOT_KNOWN if value is None else shown(value)
