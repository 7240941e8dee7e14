"""From answers to accuracies at each visible context, the best of them, and the folder that holds it all."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from contextwise.base.intervals import wilson
from contextwise.evaluation.answering.batches import Key
from contextwise.evaluation.answering.prompts import Encoded
from contextwise.evaluation.measures.ruler.questions import Task
from contextwise.evaluation.measures.ruler.scoring import best_shares, string_match

KIND = "ruler"
SUMMARY, ANSWERS = "summary.json", "answers.jsonl"


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
    all_equal = bool(np.ptp(means) < 1e-12)
    best = None if all_equal else int(np.flatnonzero(means >= means.max() - 1e-12)[0])
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
