"""From answers to accuracies at each visible context, the best of them, and the folder that holds it all."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from contextwise.base.errors import ConfigError
from contextwise.base.files import atomic_directory, atomic_write, read_json, write_json
from contextwise.evaluation.results import Measured
from contextwise.evaluation.ruler.answering import Key
from contextwise.evaluation.ruler.prompts import Encoded
from contextwise.evaluation.ruler.questions import Task
from contextwise.evaluation.ruler.scoring import accuracy, best_shares, string_match

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
            "accuracy": accuracy(scores[:, i]).to_dict(),
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


def finished_evaluation(
    out: Path, asked: dict[str, Any], kind: str = KIND, what: str = "RULER"
) -> Measured | None:
    """The measurement that is already at ``out``, if it is this one.

    Args:
        asked: what its answers depend on.
        kind: as its summary says it.
        what: what to call it in an error.

    Raises:
        ConfigError: the place holds something else.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    file = out / SUMMARY
    there = read_json(file, "what lies where the answers go") if file.is_file() else None
    if not isinstance(there, dict) or there.get("kind") != kind:
        raise ConfigError(
            f"{out} holds something that is not a {what} measurement; give another place with --out"
        )
    wanted = json.loads(json.dumps(asked))
    different = [name for name in wanted if there.get(name) != wanted[name]]
    if different:
        raise ConfigError(
            f"{out} holds a {what} measurement with other settings ({', '.join(different[:5])} differ); "
            "give another place with --out, or remove that folder"
        )
    return Measured(out, there)


def write_evaluation(out: Path, summary: dict[str, Any], rows: list[dict[str, Any]]) -> Measured:
    """Write a measurement, complete or not at all.

    Raises:
        DataError: the disk is full, or the place cannot be written to.
    """
    with atomic_directory(out, "the answers") as folder:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        atomic_write(folder / ANSWERS, lines, "the answers")
        write_json(folder / SUMMARY, summary, "the answers")
        if out.is_dir():
            out.rmdir()  # empty: anything else was refused before
    return Measured(out, summary)
