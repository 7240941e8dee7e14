"""What a judge's verdicts come to: ratings and win rates, with intervals over questions.

- Rating (Zheng et al. 2023): the mean over questions and turns, from 1 to 10.
- Win rate: a win counts 1, a tie 1/2. A model wins a comparison only if it does so in both orders, else it is a tie
  (Section 3.4 there): a judge who likes the first answer gives ties, not wins. Comparisons with an order that has no verdict
  are left out and counted.

Intervals are 95% bootstrap intervals over questions, whose turns stay together.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from contextwise.base.estimates import CONFIDENCE, Estimate
from contextwise.base.intervals import RESAMPLES, estimate
from contextwise.evaluation.measures.judging.files import Answers, Question

Row = Mapping[str, Any]
Values = dict[tuple[int | str, int], float]
"""(question, turn) -> rating, or share of a win."""

SHOWN = 3


def summarize(
    questions: Sequence[Question], models: Sequence[Answers], against: Answers | None, rows: Sequence[Row]
) -> dict[str, Any]:
    """Everything that ``summary.json`` says of the verdicts.

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
    """What each comparison came to for ``model``: 1 won, 0 lost, 0.5 a tie or undecided.

    Returns:
        The outcomes of comparisons with a verdict in both orders; and in how many of them both verdicts name the same place,
        first or second, instead of the same model.
    """
    verdicts: dict[tuple[int | str, int], list[tuple[str, float]]] = defaultdict(list)
    for row in rows:
        if row["verdict"] is not None:
            first = row["models"][0] == model
            share = 0.5 if row["verdict"] == "C" else float((row["verdict"] == "A") == first)
            verdicts[row["question_id"], row["turn"]].append((row["verdict"], share))
    both = {place: found for place, found in verdicts.items() if len(found) == 2}
    values = {place: a if a == b else 0.5 for place, ((_, a), (_, b)) in both.items()}
    return values, sum(a == b != "C" for (a, _), (b, _) in both.values())


def _ratings(rows: Sequence[Row], models: Sequence[str], categories: Mapping[Any, str]) -> dict[str, Any]:
    values: dict[str, Values] = {model: {} for model in models}
    for row in rows:
        if row["verdict"] is not None:
            values[row["models"][0]][row["question_id"], row["turn"]] = row["verdict"]
    found: dict[str, Any] = {"models": {model: _by_part(values[model], categories) for model in models}}
    if len(models) > 1:
        first = values[models[0]]
        found["differences"] = {
            f"{other} - {models[0]}": _mean(
                {place: values[other][place] - first[place] for place in values[other].keys() & first.keys()}
            )
            for other in models[1:]
        }
    return found


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
    """Mean over questions and turns with its interval over questions; None where there is no value."""
    if not values:
        return None
    sums: dict[int | str, list[float]] = defaultdict(list)
    for (question, _), value in sorted(values.items(), key=lambda item: str(item[0])):
        sums[question].append(value)
    block = np.array([[sum(found) for found in sums.values()]])
    weights = np.array([len(found) for found in sums.values()], dtype=np.float64)
    found: Estimate = estimate([block], weights)
    return {**found.to_dict(), "questions": len(sums)}
