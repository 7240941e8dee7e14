"""Scores of RULER's answers by string match, accuracies with intervals, the best visible context, and their tables.

    all   score = share of the answers that occur in the text that the model wrote
    part  score = 1 if one of the answers does, else 0

Capital letters are equal to small ones. The interval of an accuracy is Wilson's score interval.

The bootstrap over questions says how sure the best visible context is: all visible contexts have the same questions, so each
resample draws questions with all their scores, and its best context is that of the greatest mean score.

Legend of shapes: Q questions, V visible contexts.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.base.estimates import Estimate
from contextwise.base.intervals import RESAMPLES, draw_counts, wilson
from contextwise.base.tables import Column, Table, terminal
from contextwise.evaluation.answering.batches import Key
from contextwise.evaluation.answering.prompts import Encoded
from contextwise.evaluation.measures.ruler.questions import Match, Task

EQUAL = 1e-12
_CONTROL = re.compile(r"[\x00-\x1f]")
COLUMNS = (
    Column("visible", "integer", align="right"),
    Column("accuracy", "estimate", interval="own"),
    Column("in view", "percent"),
    Column("best in", "percent"),
)


def string_match(answer: str, wanted: Sequence[str], match: Match) -> float:
    """Score of one answer, 0 to 1.

    Args:
        answer: the text that the model wrote.
        wanted: looked for in it.
    """
    written = _CONTROL.sub("\n", answer).lower()
    matches = [text.lower() in written for text in wanted]
    return float(any(matches)) if match == "part" else sum(matches) / len(matches)


def best_shares(scores_QV: np.ndarray) -> np.ndarray:
    """Share of bootstrap resamples in which each visible context is the best, (V,); they sum to 1.

    Where several are equally good in a resample, each gets an equal part of it.
    """
    questions, contexts = scores_QV.shape
    shares = np.zeros(contexts)
    for counts in draw_counts(questions):
        means = counts @ scores_QV / questions
        best = np.isclose(means, means.max(axis=1, keepdims=True), rtol=0, atol=EQUAL)
        shares += (best / best.sum(axis=1, keepdims=True)).sum(axis=0)
    return shares / RESAMPLES


def task_summary(
    task: Task, questions: Sequence[Encoded], visible: Sequence[int], answers: dict[Key, str]
) -> dict[str, Any]:
    """Accuracy at each visible context, and the best one, of one task."""
    scores = np.array(
        [
            [
                string_match(answers[task.name, context, index], question.question.answers, task.match)
                for context in visible
            ]
            for index, question in enumerate(questions)
        ]
    )
    shares = best_shares(scores)
    lengths = [len(question.body) for question in questions]
    rows = [
        {
            "visible": context,
            "accuracy": wilson(float(np.mean(scores[:, i])), len(scores)).to_dict(),
            "in_view": float(np.mean([question.in_view(context) for question in questions])),
            "best_share": float(shares[i]),
        }
        for i, context in enumerate(visible)
    ]
    means = scores.mean(axis=0)
    all_equal = bool(np.ptp(means) < EQUAL)
    best = None if all_equal else int(np.flatnonzero(means >= means.max() - EQUAL)[0])
    return {
        "title": task.title,
        "match": task.match,
        "new_tokens": task.new_tokens,
        "questions": len(questions),
        "body_tokens": {
            "mean": math.fsum(lengths) / len(lengths),
            "least": min(lengths),
            "most": max(lengths),
        },
        "accuracies": rows,
        "optimum": None
        if best is None
        else {"visible": visible[best], "share": float(shares[best]), "accuracy": float(means[best])},
    }


def answer_rows(
    task: Task, questions: Sequence[Encoded], visible: Sequence[int], answers: dict[Key, str]
) -> list[dict[str, Any]]:
    """One row a question, for ``answers.jsonl``; ``needles`` has (tokens behind, reach) of each."""
    return [
        {
            "task": task.name,
            "index": index,
            "question": encoded.question.ending.strip(),
            "answers": list(encoded.question.answers),
            "body_tokens": len(encoded.body),
            "needles": [list(needle) for needle in encoded.needles],
            "answered": [
                {
                    "visible": context,
                    "in_view": encoded.in_view(context),
                    "answer": (answer := answers[task.name, context, index]),
                    "score": string_match(answer, encoded.question.answers, task.match),
                }
                for context in visible
            ],
        }
        for index, encoded in enumerate(questions)
    ]


def ruler_tables(summary: dict[str, Any]) -> RenderableType:
    """For each task: accuracy against visible context, and a sentence on the best of them."""
    parts = [_task_table(name, result) for name, result in summary["results"].items()]
    notes = [f"Note: {note}." for note in summary["notes"]]
    return Group(Text(_heading(summary)), "", *parts, terminal(*notes))


def _task_table(name: str, result: dict[str, Any]) -> RenderableType:
    score = "share of the answers found" if result["match"] == "all" else "one of the answers found"
    heading = (
        f"{name}, {result['title']}: {result['questions']:,} questions, texts of {result['body_tokens']['mean']:,.0f} "
        f"tokens; score: {score}"
    )
    rows = [
        (row["visible"], Estimate.from_dict(row["accuracy"]), row["in_view"], row["best_share"])
        for row in result["accuracies"]
    ]
    return terminal(heading, Table("", COLUMNS, rows), verdict(result), "")


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
    text = f"Best with {best['visible']:,} visible tokens, in {share:.0%} of resamples"
    if share >= 0.995:
        return f"{text}."
    return f"{text}; {second['visible']:,} in {second['best_share']:.0%}."


def _heading(summary: dict[str, Any]) -> str:
    settings = summary["settings"]
    length, gamma = settings["length"], settings["gamma"]
    law = "all positions are equally likely" if gamma == 0 else f"P(x) ~ (1 - x/{length:,})^{gamma:g}"
    chat = ", in its chat template" if settings["chat"] else ""
    return (
        f"{summary['model']}{chat}: texts of up to {length:,} tokens; gamma {gamma:g}: {law}; "
        f"seed {settings['seed']}. Visible: a text's last tokens, and always the question."
    )
