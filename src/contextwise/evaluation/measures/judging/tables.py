"""A judging as tables that read well in 80 columns."""

from typing import Any

from rich import box
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from contextwise.evaluation.tables import NOT_KNOWN


def judging_tables(summary: dict[str, Any]) -> RenderableType:
    """Ratings or win rates, of all questions and of each part, and what the judge left open."""
    parts: list[RenderableType] = [Text(_heading(summary)), ""]
    if summary["kind"] == "rating":
        for model, found in summary["models"].items():
            parts += [Text(f"{model}: rating, 1 to 10"), _table(found, _rating), ""]
        for name, difference in summary.get("differences", {}).items():
            parts.append(Text(f"{name}: {_difference(difference)}"))
    else:
        parts += [_table(summary, _percent), Text(_comparisons(summary))]
    if summary["length_controlled"] is not None:
        parts.append(Text(f"Length-controlled win rate: {summary['length_controlled']:.1%}"))
    return Stack(*parts, *_open_ends(summary))


def _heading(summary: dict[str, Any]) -> str:
    what = f"{summary['questions']:,} questions, judged by {summary['judge']}"
    if summary["kind"] == "rating":
        return what
    return f"{summary['model']} against {summary['against']}: {what}, each pair in both orders"


def _table(found: dict[str, Any], shown: Any) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for column in ("value", "95% interval", "questions"):
        table.add_column(column, justify="right")
    rows = {"all": found["all"]}
    rows |= {f"turn {turn}": value for turn, value in found["turns"].items() if len(found["turns"]) > 1}
    rows |= found["categories"] if len(found["categories"]) > 1 else {}
    for name, value in rows.items():
        if value is None:
            table.add_row(name, NOT_KNOWN, NOT_KNOWN, "0")
            continue
        ends = "" if value["low"] is None else f"{shown(value['low'])} to {shown(value['high'])}"
        table.add_row(name, shown(value["value"]), ends or NOT_KNOWN, f"{value['questions']:,}")
    return table


def _rating(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _difference(value: dict[str, Any] | None) -> str:
    if value is None:
        return "no question was rated for both"
    if value["low"] is None:
        return f"{value['value']:+.2f} on one question, which allows no interval"
    sure = "" if value["low"] <= 0 <= value["high"] else ", zero lies outside"
    return f"{value['value']:+.2f} (95% interval {value['low']:+.2f} to {value['high']:+.2f}{sure})"


def _comparisons(summary: dict[str, Any]) -> str:
    decided = summary["wins"] + summary["ties"] + summary["losses"]
    text = f"{summary['wins']:,} won, {summary['ties']:,} tied, {summary['losses']:,} lost."
    followed = summary["verdicts_that_follow_the_order"]
    if followed:
        text += (
            f" In {followed:,} of {decided:,} pairs the judge named the same place in both orders, not the same model; "
            "they count as ties."
        )
    return text


def _open_ends(summary: dict[str, Any]) -> list[RenderableType]:
    lines = []
    if summary["without_verdict"]:
        lines.append(
            f"{summary['without_verdict']:,} of {summary['judgments']:,} answers of the judge have no verdict and are left "
            "out; such as:"
        )
        lines += [f"  {_visible(text)}" for text in summary["examples_without_verdict"]]
    return [Text(line) for line in lines]


def _visible(text: str) -> str:
    """What a judge wrote, with control characters, which could steer the terminal, as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
