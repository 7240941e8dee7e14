"""Ratings and win rates from a judge's verdicts, with intervals over questions, and their tables.

- Rating (Zheng et al. 2023): the mean over questions and turns, from 1 to 10.
- Win rate: a win counts 1, a tie 1/2. A model wins a comparison only if it does so in both orders, else it is a tie
  (Section 3.4 there): a judge that prefers the first answer gives ties, not wins.
- Weighted win rate (AlpacaEval 2.0, Dubois et al. 2024): a comparison counts the probability that the judge names the model, of
  the two names' (:func:`~contextwise.evaluation.measures.judging.requests.read_preference`), mean over both orders.

Comparisons with an order that has no verdict are left out and counted.

Intervals are 95% t-intervals over questions, whose turns stay together.
"""

import importlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.base.errors import ConfigError, one_line
from contextwise.base.estimates import CONFIDENCE, FEWEST_DOCUMENTS, Estimate
from contextwise.base.intervals import estimate
from contextwise.base.tables import Column, Table
from contextwise.evaluation.measures.judging.files import ModelAnswers, Question

Row = Mapping[str, Any]
Values = dict[tuple[int | str, int], float]
"""(question, turn) -> rating, or share of a win."""

SHOWN = 3
"""Answers without a verdict that are shown."""


def summarize(
    questions: Sequence[Question], models: Sequence[ModelAnswers], against: ModelAnswers | None, rows: Sequence[Row]
) -> dict[str, Any]:
    """The verdicts' part of ``summary.json``; a row has ``question_id``, ``turn``, ``models``, ``verdict``, ``judgment``."""
    categories = {question.id: question.category for question in questions}
    unparsed = [one_line(row["judgment"]) or "(blank)" for row in rows if row["verdict"] is None]
    shared = {
        "questions": len(questions),
        "judgments": len(rows),
        "without_verdict": len(unparsed),
        "examples_without_verdict": unparsed[:SHOWN],
        "confidence": CONFIDENCE,
    }
    if against is None:
        return {"kind": "rating", **shared, **_ratings(rows, [m.model for m in models], categories)}
    outcomes, inconsistent = comparisons(rows, models[0].model)
    return {
        "kind": "win rate",
        **shared,
        "model": models[0].model,
        "against": against.model,
        "wins": sum(value > 0.5 for value in outcomes.values()),
        "ties": sum(value == 0.5 for value in outcomes.values()),
        "losses": sum(value < 0.5 for value in outcomes.values()),
        "verdicts_that_follow_the_order": inconsistent,
        **_by_part(outcomes, categories),
    }


def comparisons(rows: Iterable[Row], model: str) -> tuple[Values, int]:
    """The outcome of each comparison for ``model``: 1 won, 0 lost, 0.5 a tie or undecided; weighted, anything from 0 to 1.

    A verdict is ``A``, ``B`` or ``C``, or weighted: the share of the win, from 0 to 1, of the answer that is shown first.

    Returns:
        The outcomes of comparisons with a verdict in both orders; and in how many of them both verdicts name the same position,
        first or second, instead of the same model.
    """
    shares: dict[tuple[int | str, int], list[tuple[float, float]]] = defaultdict(list)
    weighted = False
    for row in rows:
        if row["verdict"] is not None:
            weighted |= isinstance(row["verdict"], float)
            first = row["verdict"] if weighted else {"A": 1.0, "B": 0.0, "C": 0.5}[row["verdict"]]
            shares[row["question_id"], row["turn"]].append((first, first if row["models"][0] == model else 1 - first))
    both = {key: pair for key, pair in shares.items() if len(pair) == 2}
    values = {key: (a + b) / 2 if weighted or a == b else 0.5 for key, ((_, a), (_, b)) in both.items()}
    return values, sum((first - 0.5) * (second - 0.5) > 0 for (first, _), (second, _) in both.values())


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
        "categories": {n: _mean({k: v for k, v in values.items() if categories[k[0]] == n}) for n in names},
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


def check_package(against: ModelAnswers | None) -> Any:
    """The alpaca_eval package's regression."""
    if against is None or not against.questions:
        raise ConfigError(
            "length_controlled is for AlpacaEval's outputs, compared with those of a reference model; leave it out"
        )
    try:
        return importlib.import_module("alpaca_eval.metrics.glm_winrate")
    except ImportError:
        raise ConfigError(
            "length_controlled needs the alpaca_eval package, which is not installed; pip install alpaca_eval"
        ) from None


def length_controlled_win_rate(ours: ModelAnswers, theirs: ModelAnswers, rows: Iterable[Row]) -> float:
    """AlpacaEval's length-controlled win rate of ``ours`` (Dubois et al. 2024), from 0 to 1, by its own package's regression.

    The package looks the difficulty of the instructions up by their number in the published list, which ``theirs`` must follow.
    """
    regression = check_package(theirs)
    outcomes, _ = comparisons(rows, ours.model)
    table = [
        {
            "index": index,
            "instruction": question.id,
            "output_1": theirs.texts[question.id][0],
            "output_2": ours.texts[question.id][0],
            "generator_1": theirs.model,
            "generator_2": ours.model,
            "annotator": "contextwise",
            "preference": 1.0 + outcomes[question.id, 1],
        }
        for index, question in enumerate(theirs.questions)
        if (question.id, 1) in outcomes
    ]
    frame = regression.pd.DataFrame(table).set_index("index")
    try:
        result = regression.get_length_controlled_winrate(frame, save_weights_dir=None)
    except Exception as error:  # of many classes: the package's, the Hub's, scikit-learn's
        reason = one_line(error, 160)
        raise ConfigError(
            f"alpaca_eval gives no length-controlled win rate ({reason}); it needs its file df_gamed.csv from the Hub, and "
            "AlpacaEval's instructions in their published order; leave length_controlled out"
        ) from None
    return float(result["length_controlled_winrate"]) / 100


def judging_tables(summary: dict[str, Any]) -> RenderableType:
    """Ratings or win rates, of all questions and of each part, and the answers of the judge without a verdict."""
    heading = f"{summary['questions']:,} questions, judged by {summary['judge']}"
    lines: list[str] = []
    tables: list[RenderableType] = []
    if summary["kind"] == "rating":
        for model, level in summary["models"].items():
            tables += [Text(f"{model}: rating, 1 to 10"), _table(level, ".2f"), ""]
        lines += [f"{name}: {_difference(value)}" for name, value in summary.get("differences", {}).items()]
    else:
        heading = f"{summary['model']} against {summary['against']}: {heading}, each pair in both orders"
        weighted = summary["verdicts"] == "token probabilities"
        heading += ", weighted by the probabilities of its verdict's token" if weighted else ""
        tables.append(_table(summary, "percent"))
        wins, ties, losses = summary["wins"], summary["ties"], summary["losses"]
        line = f"{wins:,} won, {ties:,} tied, {losses:,} lost."
        if followed := summary["verdicts_that_follow_the_order"]:
            line += (
                f" In {followed:,} of {wins + ties + losses:,} pairs the judge named the same position in both orders, not the "
                f"same model{'' if weighted else '; they count as ties'}."
            )
        lines.append(line)
    if summary["length_controlled"] is not None:
        lines.append(f"Length-controlled win rate: {summary['length_controlled']:.1%}")
    if summary["without_verdict"]:
        lines.append(
            f"{summary['without_verdict']:,} of {summary['judgments']:,} answers of the judge have no verdict and are left "
            "out, such as:"
        )
        # Control characters could steer the terminal; they are shown as escapes.
        lines += [
            "  " + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
            for text in summary["examples_without_verdict"]
        ]
    return Group(Text(heading), "", *tables, *map(Text, lines))


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
    if difference.too_few:
        return f"{difference:+.2f}; fewer than {FEWEST_DOCUMENTS} questions allow no verdict"
    return f"{difference:+.2f}, {'significant' if difference.decided else 'no significant difference'}"
