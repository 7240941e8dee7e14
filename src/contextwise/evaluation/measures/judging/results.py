"""Ratings and win rates from a judge's verdicts, with intervals over questions, and their tables.

- Rating (Zheng et al. 2023): the mean over questions and turns, from 1 to 10.
- Win rate: a win counts 1, a tie 1/2. A model wins a comparison only if it does so in both orders, else it is a tie
  (Section 3.4 there): a judge that prefers the first answer gives ties, not wins. Comparisons with an order that has no verdict
  are left out and counted.

Intervals are 95% bootstrap intervals over questions, whose turns stay together.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.base.estimates import CONFIDENCE, Estimate
from contextwise.base.intervals import RESAMPLES, estimate
from contextwise.base.tables import Column, Table
from contextwise.evaluation.measures.judging.files import ModelAnswers, Question

Row = Mapping[str, Any]
Values = dict[tuple[int | str, int], float]
"""(question, turn) -> rating, or share of a win."""

SHOWN = 3
"""Answers without a verdict that are shown."""


def summarize(
    questions: Sequence[Question],
    models: Sequence[ModelAnswers],
    against: ModelAnswers | None,
    rows: Sequence[Row],
) -> dict[str, Any]:
    """The verdicts' part of ``summary.json``.

    Args:
        rows: of the judgments: ``question_id``, ``turn``, ``models``, ``verdict``, ``judgment``.
    """
    categories = {question.id: question.category for question in questions}
    unparsed = [row for row in rows if row["verdict"] is None]
    shared = {
        "questions": len(questions),
        "judgments": len(rows),
        "without_verdict": len(unparsed),
        "examples_without_verdict": [
            " ".join(row["judgment"].split())[:200] or "(blank)" for row in unparsed[:SHOWN]
        ],
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
    }
    if against is None:
        return {"kind": "rating", **shared, **_ratings(rows, [m.model for m in models], categories)}
    outcomes, inconsistent = comparisons(rows, models[0].model)
    return {
        "kind": "win rate",
        **shared,
        "model": models[0].model,
        "against": against.model,
        "wins": sum(value == 1 for value in outcomes.values()),
        "ties": sum(value == 0.5 for value in outcomes.values()),
        "losses": sum(value == 0 for value in outcomes.values()),
        "verdicts_that_follow_the_order": inconsistent,
        **_by_part(outcomes, categories),
    }


def comparisons(rows: Iterable[Row], model: str) -> tuple[Values, int]:
    """The outcome of each comparison for ``model``: 1 won, 0 lost, 0.5 a tie or undecided.

    Returns:
        The outcomes of comparisons with a verdict in both orders; and in how many of them both verdicts name the same position,
        first or second, instead of the same model.
    """
    verdicts: dict[tuple[int | str, int], list[tuple[str, float]]] = defaultdict(list)
    for row in rows:
        if row["verdict"] is not None:
            first = row["models"][0] == model
            share = 0.5 if row["verdict"] == "C" else float((row["verdict"] == "A") == first)
            verdicts[row["question_id"], row["turn"]].append((row["verdict"], share))
    both = {key: pair for key, pair in verdicts.items() if len(pair) == 2}
    values = {key: a if a == b else 0.5 for key, ((_, a), (_, b)) in both.items()}
    return values, sum(a == b != "C" for (a, _), (b, _) in both.values())


def _ratings(rows: Sequence[Row], models: Sequence[str], categories: Mapping[Any, str]) -> dict[str, Any]:
    values: dict[str, Values] = {model: {} for model in models}
    for row in rows:
        if row["verdict"] is not None:
            values[row["models"][0]][row["question_id"], row["turn"]] = row["verdict"]
    result: dict[str, Any] = {"models": {model: _by_part(values[model], categories) for model in models}}
    if len(models) > 1:
        first = values[models[0]]
        result["differences"] = {
            f"{other} - {models[0]}": _mean(
                {key: values[other][key] - first[key] for key in values[other].keys() & first.keys()}
            )
            for other in models[1:]
        }
    return result


def _by_part(values: Values, categories: Mapping[Any, str]) -> dict[str, Any]:
    """The mean of all, of each turn, and of each category."""
    names = list(dict.fromkeys(categories[question] for question, _ in values))
    turns = sorted({turn for _, turn in values})
    return {
        "all": _mean(values),
        "turns": {str(t): _mean({k: v for k, v in values.items() if k[1] == t}) for t in turns},
        "categories": {
            name: _mean({k: v for k, v in values.items() if categories[k[0]] == name}) for name in names
        },
    }


def _mean(values: Values) -> dict[str, Any] | None:
    """Mean over questions and turns with its interval over questions; None without a value."""
    if not values:
        return None
    sums: dict[int | str, list[float]] = defaultdict(list)
    for (question, _), value in sorted(values.items(), key=lambda item: str(item[0])):
        sums[question].append(value)
    block = np.array([[sum(turns) for turns in sums.values()]])
    weights = np.array([len(turns) for turns in sums.values()], dtype=np.float64)
    return {**estimate([block], weights).to_dict(), "questions": len(sums)}


def judging_tables(summary: dict[str, Any]) -> RenderableType:
    """Ratings or win rates, of all questions and of each part, and the answers of the judge without a verdict."""
    parts: list[RenderableType] = [Text(_heading(summary)), ""]
    if summary["kind"] == "rating":
        for model, level in summary["models"].items():
            parts += [Text(f"{model}: rating, 1 to 10"), _table(level, ".2f"), ""]
        for name, difference in summary.get("differences", {}).items():
            parts.append(Text(f"{name}: {_difference(difference)}"))
    else:
        parts += [_table(summary, "percent"), Text(_comparisons(summary))]
    if summary["length_controlled"] is not None:
        parts.append(Text(f"Length-controlled win rate: {summary['length_controlled']:.1%}"))
    return Group(*parts, *_without_verdict(summary))


def _heading(summary: dict[str, Any]) -> str:
    what = f"{summary['questions']:,} questions, judged by {summary['judge']}"
    if summary["kind"] == "rating":
        return what
    return f"{summary['model']} against {summary['against']}: {what}, each pair in both orders"


def _table(level: dict[str, Any], form: str) -> Table:
    parts = {"all": level["all"]}
    parts |= {f"turn {turn}": value for turn, value in level["turns"].items() if len(level["turns"]) > 1}
    parts |= level["categories"] if len(level["categories"]) > 1 else {}
    columns = (Column(""), Column("value", "estimate", form, interval="own"), Column("questions", "integer"))
    rows = [
        (name, None, 0) if value is None else (name, Estimate.from_dict(value), value["questions"])
        for name, value in parts.items()
    ]
    return Table("", columns, rows)


def _difference(value: dict[str, Any] | None) -> str:
    if value is None:
        return "no question was rated for both"
    difference = Estimate.from_dict(value)
    if not difference.has_interval:
        return f"{difference.value:+.2f} on one question, which allows no interval"
    return f"{difference:+.2f}, {'significant' if difference.decided else 'no significant difference'}"


def _comparisons(summary: dict[str, Any]) -> str:
    decided = summary["wins"] + summary["ties"] + summary["losses"]
    text = f"{summary['wins']:,} won, {summary['ties']:,} tied, {summary['losses']:,} lost."
    followed = summary["verdicts_that_follow_the_order"]
    if followed:
        text += (
            f" In {followed:,} of {decided:,} pairs the judge named the same position in both orders, not the same model; "
            "they count as ties."
        )
    return text


def _without_verdict(summary: dict[str, Any]) -> list[RenderableType]:
    lines = []
    if summary["without_verdict"]:
        lines.append(
            f"{summary['without_verdict']:,} of {summary['judgments']:,} answers of the judge have no verdict and are left "
            "out, such as:"
        )
        lines += [f"  {_visible(text)}" for text in summary["examples_without_verdict"]]
    return [Text(line) for line in lines]


def _visible(text: str) -> str:
    """What a judge wrote, with control characters, which could steer the terminal, as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
