"""Scores on long tasks against visible context, in tables for 80 columns; times 100, as LongBench prints them."""

from typing import Any

from rich import box
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from contextwise.evaluation.tables import NOT_KNOWN

MOST_COLUMNS = 5
KEPT = {
    "ends": "the first and the last tokens of a prompt stay (cut in the middle)",
    "nearest": "the last tokens of the text stay, and all that stands around it",
}


def longbench_tables(summary: dict[str, Any]) -> RenderableType:
    """All data sets beside each other, then each group and the whole against visible context, and what to say of it."""
    parts: list[RenderableType] = [_sentence(_heading(summary), 0), ""]
    contexts = summary["visible"]
    parts += [
        _scores_table(summary, range(first, min(first + MOST_COLUMNS, len(contexts))))
        for first in range(0, len(contexts), MOST_COLUMNS)
    ]
    parts += [
        "",
        _sentence("Overall: the mean over groups, of the mean over their data sets", 1),
        _level_table(summary["overall"]),
    ]
    named = {**summary["groups"], "Overall": summary["overall"]}
    if len(summary["groups"]) == 1:
        named = {"Overall": summary["overall"]}
    parts += [_sentence(f"{name}: {verdict(level)}") for name, level in named.items()]
    parts += [_sentence(f"Note: {note}.") for note in summary["notes"]]
    return Stack(*parts)


def verdict(level: dict[str, Any]) -> str:
    """Where more input stops helping."""
    if len(level["scores"]) == 1:
        return "with one visible context there is none to compare it with; give several with --visible."
    if all(row["score"]["value"] == 0 for row in level["scores"]):
        return "every answer scores 0, which says nothing about context."
    stop = level["stops_helping"]
    if stop is None:
        return "a data set of one document allows no interval, and so no verdict."
    if stop["to_the_largest"] is None:
        return f"more input still helps at {stop['visible']:,} visible tokens, the most that was asked for."
    rest = stop["to_the_largest"]
    least = stop["visible"] == level["scores"][0]["visible"]
    text = (
        f"no visible context is surely better than {stop['visible']:,} tokens, the least that was asked for"
        if least
        else f"more input stops helping at {stop['visible']:,} visible tokens"
    )
    harm = ", which harms" if rest["high"] < 0 else ""
    return f"{text}; from there to the most, {_gain(rest)}{harm}."


def _heading(summary: dict[str, Any]) -> str:
    texts = sum(dataset["questions"] for dataset in summary["datasets"].values())
    documents = sum(dataset["documents"] for dataset in summary["datasets"].values())
    chat = ", in its chat template" if summary["chat"] else ""
    rope = ""
    if summary["rope"] is not None:
        factor = "" if summary["rope_factor"] is None else f", factor {summary['rope_factor']:.3g}"
        rope = f" Trained with {summary['trained_context']:,} positions; --rope {summary['rope']}{factor}."
    return (
        f"{summary['model']}{chat}: {texts:,} question{'s' * (texts != 1)} on {documents:,} document{'s' * (documents != 1)}. "
        f"Visible tokens are those of the prompt: "
        f"{KEPT[summary['keep']]}.{rope}"
    )


def _scores_table(summary: dict[str, Any], places: range) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 1), title=" score", title_justify="left")
    table.add_column("data set", overflow="fold")
    table.add_column("metric", overflow="fold")
    table.add_column("asked", justify="right", no_wrap=True)
    for place in places:
        table.add_column(f"{summary['visible'][place]:,}", justify="right", no_wrap=True)
    for group, about in summary["groups"].items():
        for name in about["datasets"]:
            dataset = summary["datasets"][name]
            cells = [_score(dataset["scores"][place]) for place in places]
            table.add_row(name, dataset["metric"], f"{dataset['questions']:,}", *cells)
        table.add_row(
            Text(group, style="bold"),
            "",
            "",
            *(_score(about["scores"][place]) for place in places),
            end_section=True,
        )
    overall = summary["overall"]["scores"]
    table.add_row(Text("Overall", style="bold"), "", "", *(_score(overall[place]) for place in places))
    return table


def _level_table(level: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 1))
    for column in ("visible", "score", "95% interval", "to the next", "95% interval"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in level["scores"]:
        value, gain = row["score"], row["to_the_next"]
        table.add_row(
            f"{row['visible']:,}",
            _score(row),
            _interval(value, ".2f"),
            "" if gain is None else f"{100 * gain['value']:+.2f}",
            "" if gain is None else _interval(gain, "+.2f"),
        )
    return table


def _score(row: dict[str, Any]) -> str:
    return f"{100 * row['score']['value']:.2f}"


def _interval(value: dict[str, Any], form: str) -> str:
    if value["low"] is None:
        return NOT_KNOWN
    return f"[{format(100 * value['low'], form)}, {format(100 * value['high'], form)}]"


def _gain(value: dict[str, Any]) -> str:
    return f"{100 * value['value']:+.2f} {_interval(value, '+.2f')}"


def _sentence(text: str, indent: int = 1) -> Padding:
    return Padding(Text(text), (0, 0, 0, indent))
