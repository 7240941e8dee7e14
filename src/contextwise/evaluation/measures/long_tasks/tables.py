"""Scores on long tasks against visible context, in tables for 80 columns; times 100, as LongBench prints them."""

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from contextwise.base.estimates import Estimate
from contextwise.base.tables import Column, Row, Table, terminal

MOST_COLUMNS = 5
KEPT = {
    "ends": "the first and the last tokens of a prompt stay (cut in the middle)",
    "nearest": "the last tokens of the text stay, and all that stands around it",
}


def longbench_tables(summary: dict[str, Any]) -> RenderableType:
    """All data sets beside each other, then each group and the whole against visible context, and what to say of it."""
    contexts = summary["visible"]
    places = range(0, len(contexts), MOST_COLUMNS)
    named = {**summary["groups"], "Overall": summary["overall"]}
    if len(summary["groups"]) == 1:
        named = {"Overall": summary["overall"]}
    return terminal(
        Text(_heading(summary)),
        "",
        *(_scores_table(summary, range(i, min(i + MOST_COLUMNS, len(contexts)))) for i in places),
        "",
        _level_table(summary["overall"], "Overall: the mean over groups, of the mean over their data sets"),
        *(f"{name}: {verdict(level)}" for name, level in named.items()),
        *(f"Note: {note}." for note in summary["notes"]),
    )


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
    gain = _hundredfold(rest)
    harm = ", which harms" if gain.above(0.0) is False else ""
    return f"{text}; from there to the most, {gain:+.2f}{harm}."


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
    rows = []
    for group, about in summary["groups"].items():
        for name in about["datasets"]:
            dataset = summary["datasets"][name]
            rows.append(
                Row([name, dataset["metric"], dataset["questions"], *_scores(dataset["scores"], places)])
            )
        rows.append(Row([group, "", "", *_scores(about["scores"], places)], bold=True, last=True))
    rows.append(Row(["Overall", "", "", *_scores(summary["overall"]["scores"], places)], bold=True))
    contexts = [f"{summary['visible'][place]:,}" for place in places]
    columns = ["data set", Column("metric", align="left"), Column("questions", "integer")]
    return Table(
        "score", [*columns, *(Column(name, "estimate", ".2f", interval="none") for name in contexts)], rows
    )


def _scores(rows: list[dict[str, Any]], places: range) -> list[Estimate]:
    return [_hundredfold(rows[place]["score"]) for place in places]


def _level_table(level: dict[str, Any], title: str) -> Table:
    columns = [
        Column("visible", "integer", align="right"),
        Column("score", "estimate", ".2f", interval="own"),
        Column("to the next", "difference", "+.2f", interval="own", missing=""),
    ]
    rows = [
        [
            row["visible"],
            _hundredfold(row["score"]),
            None if row["to_the_next"] is None else _hundredfold(row["to_the_next"]),
        ]
        for row in level["scores"]
    ]
    return Table(title, columns, rows)


def _hundredfold(values: dict[str, Any]) -> Estimate:
    return Estimate.from_dict(values).scaled(100)
