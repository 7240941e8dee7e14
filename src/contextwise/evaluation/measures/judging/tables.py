"""A judging as tables that read well in 80 columns."""

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from contextwise.base.estimates import Estimate
from contextwise.base.tables import Column, Table, terminal


def judging_tables(summary: dict[str, Any]) -> RenderableType:
    """Ratings or win rates, of all questions and of each part, and what the judge left open."""
    parts: list[RenderableType] = [Text(_heading(summary)), ""]
    if summary["kind"] == "rating":
        for model, ratings in summary["models"].items():
            parts += [_table(f"{model}: rating, 1 to 10", ratings, ".2f"), ""]
        for name, difference in summary.get("differences", {}).items():
            parts.append(f"{name}: {_difference(difference)}")
    else:
        parts += [_table("", summary, "percent"), _comparisons(summary)]
    if summary["length_controlled"] is not None:
        parts.append(f"Length-controlled win rate: {summary['length_controlled']:.1%}")
    return terminal(*parts, *_without_verdict(summary))


def _heading(summary: dict[str, Any]) -> str:
    what = f"{summary['questions']:,} questions, judged by {summary['judge']}"
    if summary["kind"] == "rating":
        return what
    return f"{summary['model']} against {summary['against']}: {what}, each pair in both orders"


def _table(title: str, values: dict[str, Any], form: str) -> Table:
    parts = {"all": values["all"]}
    parts |= {f"turn {turn}": part for turn, part in values["turns"].items() if len(values["turns"]) > 1}
    parts |= values["categories"] if len(values["categories"]) > 1 else {}
    rows = [
        [name, None, 0] if part is None else [name, Estimate.from_dict(part), part["questions"]]
        for name, part in parts.items()
    ]
    return Table(
        title, ["", Column("value", "estimate", form, interval="own"), Column("questions", "integer")], rows
    )


def _difference(values: dict[str, Any] | None) -> str:
    if values is None:
        return "no question was rated for both"
    difference = Estimate.from_dict(values)
    if not difference.has_interval:
        return f"{difference:+.2f} on one question, which allows no interval"
    return f"{difference:+.2f}, {'significant' if difference.decided else 'no significant difference'}"


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


def _without_verdict(summary: dict[str, Any]) -> list[str]:
    if not summary["without_verdict"]:
        return []
    return [
        f"{summary['without_verdict']:,} of {summary['judgments']:,} answers of the judge have no verdict and are left out; "
        "such as:",
        *(f"  {_visible(text)}" for text in summary["examples_without_verdict"]),
    ]


def _visible(text: str) -> str:
    """What a judge wrote, with control characters, which could steer the terminal, as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
