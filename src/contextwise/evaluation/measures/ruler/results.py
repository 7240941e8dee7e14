"""Scores of RULER's answers by string match, accuracies with intervals, the best visible context, and their tables.

    all   score = share of the answers that occur in the text that the model wrote
    part  score = 1 if one of the answers does, else 0

Upper and lower case are equal. The interval of an accuracy is Wilson's score interval.

A bootstrap over questions gives the share of resamples in which a visible context is the best: all visible contexts have the
same questions, so each resample draws questions with all their scores, and its best context has the greatest mean score.

Legend of shapes: Q questions, V visible contexts.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from contextwise.base.estimates import Estimate
from contextwise.base.intervals import RESAMPLES, draw_counts, wilson
from contextwise.base.tables import Column, Table, terminal
from contextwise.evaluation.answering.prompts import Encoded, Key, body_lengths
from contextwise.evaluation.measures.ruler.questions import Task

EQUAL = 1e-12
_CONTROL = re.compile(r"[\x00-\x1f]")
COLUMNS = (
    Column("visible", "integer", align="right"),
    Column("accuracy", "estimate", interval="own"),
    Column("in view", "percent"),
    Column("best in", "percent"),
)


def string_match(answer: str, wanted: Sequence[str], match: str) -> float:
    """Score, 0 to 1, of one answer for the texts that are wanted in it."""
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


def task_results(
    task: Task, questions: Sequence[Encoded], visible: Sequence[int], answers: dict[Key, str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Accuracy of one task at each visible context and the best one, for ``summary.json``; and rows for ``answers.jsonl``.

    A row has a question; its ``needles`` are (tokens behind, reach) of each.
    """
    rows: list[dict[str, Any]] = []
    for index, encoded in enumerate(questions):
        question, answered = encoded.question, []
        for context in visible:
            answer, in_view = answers[task.name, context, index], encoded.in_view(context)
            points = string_match(answer, question.answers, task.match)
            answered.append({"visible": context, "in_view": in_view, "answer": answer, "score": points})
        about = {"task": task.name, "index": index, "question": question.ending.strip()}
        about |= {"answers": list(question.answers), "body_tokens": len(encoded.body)}
        rows.append(about | {"needles": [list(needle) for needle in encoded.needles], "answered": answered})
    scores_QV, in_view_QV = (
        np.array([[given[name] for given in row["answered"]] for row in rows]) for name in ("score", "in_view")
    )
    means, shares = scores_QV.mean(axis=0), best_shares(scores_QV)
    optimum = None
    if np.ptp(means) >= EQUAL:
        best = int(np.flatnonzero(means >= means.max() - EQUAL)[0])
        optimum = {"visible": visible[best], "share": float(shares[best]), "accuracy": float(means[best])}
    summary = {
        "title": task.title,
        "match": task.match,
        "new_tokens": task.new_tokens,
        "questions": len(questions),
        "body_tokens": body_lengths(questions),
        "accuracies": [
            {
                "visible": context,
                "accuracy": wilson(float(np.mean(scores_QV[:, i])), len(questions)).to_dict(),
                "in_view": float(np.mean(in_view_QV[:, i])),
                "best_share": float(shares[i]),
            }
            for i, context in enumerate(visible)
        ],
        "optimum": optimum,
    }
    return summary, rows


def ruler_tables(summary: dict[str, Any]) -> RenderableType:
    """For each task: accuracy against visible context, and a sentence on the best of them."""
    settings = summary["settings"]
    length, gamma = settings["length"], settings["gamma"]
    law = "all positions are equally likely" if gamma == 0 else f"P(x) ~ (1 - x/{length:,})^{gamma:g}"
    chat = ", in its chat template" if settings["chat"] else ""
    heading = (
        f"{summary['model']}{chat}: texts of up to {length:,} tokens; gamma {gamma:g}: {law}; "
        f"seed {settings['seed']}. Visible: a text's last tokens, and always the question."
    )
    parts: list[RenderableType] = []
    for name, result in summary["results"].items():
        score = "share of the answers found" if result["match"] == "all" else "one of the answers found"
        title = (
            f"{name}, {result['title']}: {result['questions']:,} questions, texts of {result['body_tokens']['mean']:,.0f} "
            f"tokens; score: {score}"
        )
        rows = [
            (row["visible"], Estimate.from_dict(row["accuracy"]), row["in_view"], row["best_share"])
            for row in result["accuracies"]
        ]
        parts.append(terminal(title, Table("", COLUMNS, rows), verdict(result), ""))
    return Group(Text(heading), "", *parts, terminal(*(f"Note: {note}." for note in summary["notes"])))


def verdict(result: dict[str, Any]) -> str:
    """Which visible context is the best of a task, and in how many resamples."""
    best = result["optimum"]
    if len(result["accuracies"]) == 1:
        return "With one visible context there is none to compare it with; give several visible contexts."
    if best is None:
        return "No visible context is better than another: the accuracies are all equal."
    text = f"Best with {best['visible']:,} visible tokens, in {best['share']:.0%} of resamples"
    others = [row for row in result["accuracies"] if row["visible"] != best["visible"]]
    second = max(others, key=lambda row: row["best_share"])
    if best["share"] >= 0.995:
        return f"{text}."
    return f"{text}; {second['visible']:,} in {second['best_share']:.0%}."
