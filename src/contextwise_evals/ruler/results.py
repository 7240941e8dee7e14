"""Scores of RULER's answers by string match, accuracies with intervals, and the best visible context.

Upper and lower case are equal. The interval of an accuracy is Wilson's score interval, that of its difference from the best
context's, paired by question, Student's t. A bootstrap over questions gives the share of resamples in which a visible context
has the greatest mean score.

Legend of shapes: Q questions, V visible contexts.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from contextwise.base.intervals import RESAMPLES, draw_counts
from contextwise.stats import mean_estimate, wilson
from contextwise_evals.answering.prompts import Encoded, Key, body_lengths
from contextwise_evals.ruler.questions import Task

EQUAL = 1e-12
_CONTROL = re.compile(r"[\x00-\x1f]")


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
    optimum, best = None, int(np.flatnonzero(means >= means.max() - EQUAL)[0])
    if np.ptp(means) >= EQUAL:
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
                "minus_best": mean_estimate(scores_QV[:, i] - scores_QV[:, best]).to_dict(),
            }
            for i, context in enumerate(visible)
        ],
        "optimum": optimum,
    }
    return summary, rows
