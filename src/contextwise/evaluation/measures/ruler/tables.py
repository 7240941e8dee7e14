"""A RULER measurement as tables that read well in 80 columns."""

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from contextwise.base.estimates import Estimate
from contextwise.base.tables import Column, Table, terminal


def ruler_tables(summary: dict[str, Any]) -> RenderableType:
    """For each task: accuracy against visible context, and a sentence on the best of them."""
    return terminal(
        Text(_heading(summary)),
        "",
        *(task_table(name, result) for name, result in summary["results"].items()),
        *(f"Note: {note}." for note in summary["notes"]),
    )


def task_table(name: str, result: dict[str, Any]) -> RenderableType:
    """Accuracy of one task against visible context, and the best of them; ``result`` as ``summary.json`` has it."""
    return terminal(_table(_task_heading(name, result), result["accuracies"]), verdict(result), "")


def verdict(result: dict[str, Any]) -> str:
    """Which visible context is the best of a task, and how sure that is."""
    best = result["optimum"]
    if len(result["accuracies"]) == 1:
        return "With one visible context there is none to compare it with; give several with --visible."
    if best is None:
        return "No visible context is better than another: the accuracies are all equal."
    share = best["share"]
    others = [row for row in result["accuracies"] if row["visible"] != best["visible"]]
    second = max(others, key=lambda row: row["best_share"])
    text = f"Best with {best['visible']:,} visible tokens: so in {share:.0%} of resamples"
    if share >= 0.995:
        return f"{text}."
    return f"{text}; {second['visible']:,} in {second['best_share']:.0%}."


def _heading(summary: dict[str, Any]) -> str:
    law = (
        "all places alike"
        if summary["gamma"] == 0
        else f"P(x) ~ (1 - x/{summary['length']:,})^{summary['gamma']:g}"
    )
    chat = ", in its chat template" if summary["chat"] else ""
    return (
        f"{summary['model']}{chat}: texts of up to {summary['length']:,} tokens; gamma {summary['gamma']:g}: {law}; "
        f"seed {summary['seed']}. Visible: so many of a text's last tokens, and always the question."
    )


def _task_heading(name: str, result: dict[str, Any]) -> str:
    how = "share of the answers found" if result["match"] == "all" else "one of the answers found"
    return (
        f"{name}, {result['title']}: {result['questions']:,} questions, texts of {result['body_tokens']['mean']:,.0f} "
        f"tokens; score: {how}"
    )


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    columns = [
        Column("visible", "integer", align="right"),
        Column("accuracy", "estimate", interval="own"),
        Column("in view", "percent"),
        Column("best in", "percent"),
    ]
    cells = [
        [row["visible"], Estimate.from_dict(row["accuracy"]), row["in_view"], row["best_share"]]
        for row in rows
    ]
    return Table(title, columns, cells)
