"""Scores of infilling: exact match and edit similarity with the known middles, with intervals over documents.

Trailing white space of the generated and the expected middle is removed first.

    exact match      = share of holes in which the two are the same
    edit similarity  = mean of 1 - d / (m + n); d: characters to delete and insert to make one of the other,
                       m and n: their lengths; 1 if both are empty

The second is the value that ``Levenshtein.ratio`` returns, and ``fuzz.ratio`` times 100, by which CodeXGLUE,
RepoBench and CrossCodeEval score completions. Generated text is never executed.

Both are ratio estimators: sums over documents, divided by the number of holes. The intervals are those of
:mod:`contextwise.base.intervals`.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from rapidfuzz.distance import Indel
from rich.text import Text

from contextwise.base.intervals import ratios
from contextwise.base.progress import interruption, progress_bar
from contextwise.evaluation.kernel import Subject
from contextwise.evaluation.measures.infill.filling import Filling, Infiller, Prompt, filling_objective
from contextwise.evaluation.measures.infill.tasks import TaskSet

SCORES = {"exact_match": "exact match", "edit_similarity": "edit similarity"}


def exact_match(filled: str, expected: str) -> bool:
    """Whether the texts are equal, except for trailing white space."""
    return filled.rstrip() == expected.rstrip()


def edit_similarity(filled: str, expected: str) -> float:
    """1 - indel distance / (sum of lengths), of the texts without trailing white space; 0 to 1."""
    return float(Indel.normalized_similarity(filled.rstrip(), expected.rstrip()))


def fill_and_score(
    subject: Subject, tasks: TaskSet, *, spm: bool, max_new_tokens: int, context: int | None
) -> dict[str, Any]:
    """Fill the holes with a model's likeliest tokens, and score the middles.

    Raises:
        ConfigError: the model was not trained to fill holes, or a setting is out of range.
        Interrupted: the process received a request to stop.
    """
    infiller = Infiller(
        subject.model,
        subject.tokenizer,
        spm=spm,
        objective=filling_objective(subject),
        max_new_tokens=max_new_tokens,
        context=context,
    )
    prompts = [infiller.prompt(task.prefix, task.suffix) for task in tasks.tasks]
    with progress_bar(f"infill {subject.name}", len(prompts), "holes") as advance:
        fillings = _fill(infiller, prompts, subject.batch_tokens, advance)
    seen = subject.run is not None and subject.run.finished
    trained_on = subject.run.summary().get("corpus", {}) if seen and subject.run else {}
    notes = ["the run was trained on these very documents; they are not held out"]
    return {
        "data": tasks.source,
        "form": infiller.form.name,
        "max_new_tokens": infiller.new_tokens,
        "room": infiller.room,
        "shortened": sum(any(prompt.dropped) for prompt in prompts),
        **scores(tasks, fillings),
        "notes": [
            *(notes if trained_on.get("fingerprint") == tasks.source["fingerprint"] else []),
            *tasks.notes,
        ],
    }


def _fill(
    infiller: Infiller, prompts: list[Prompt], batch_tokens: int, advance: Callable[..., None]
) -> list[Filling]:
    """Generate the middles, in the order of the prompts; prompts of similar length are batched, longest first."""
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i].ids))
    fillings: dict[int, Filling] = {}
    first = 0
    while first < len(order):
        interruption.check("the evaluation was stopped")
        rows = max(1, batch_tokens // (len(prompts[order[first]].ids) + infiller.new_tokens))
        chosen = order[first : first + rows]
        fillings.update(zip(chosen, infiller.fill([prompts[i] for i in chosen]), strict=True))
        advance(len(chosen))
        first += rows
    return [fillings[i] for i in range(len(prompts))]


def scores(tasks: TaskSet, fillings: list[Filling]) -> dict[str, Any]:
    """Compute both measures with their intervals over documents, the counts, and the scores of each middle."""
    documents = {
        name: index for index, name in enumerate(dict.fromkeys(task.document for task in tasks.tasks))
    }
    rows: list[dict[str, Any]] = [
        {
            "task": task.name,
            "document": task.document,
            "expected": task.expected,
            "filled": filling.text,
            "complete": filling.complete,
            "exact_match": exact_match(filling.text, task.expected),
            "edit_similarity": edit_similarity(filling.text, task.expected),
        }
        for task, filling in zip(tasks.tasks, fillings, strict=True)
    ]
    indices = [documents[task.document] for task in tasks.tasks]
    holes = np.bincount(indices)
    estimates = {
        name: ratios(np.bincount(indices, weights=[row[name] for row in rows]), {"holes": holes})[
            "holes"
        ].to_dict()
        for name in SCORES
    }
    counts = Counter(row["complete"] for row in rows)
    return {
        "documents": len(documents),
        "holes": len(rows),
        "unfinished": counts[False],
        **estimates,
        "rows": rows,
    }


def infill_heading(summary: dict[str, Any]) -> Text:
    """Build the heading: the holes, the settings, and notes on the results."""
    count = summary["holes"]
    parts = [
        f"{summary['model']} on {summary['label']}: {count:,} holes in {summary['documents']:,} documents, "
        f"asked as {summary['form']}, filled with the likeliest tokens, {summary['max_new_tokens']:,} at most."
    ]
    if summary["shortened"]:
        parts.append(
            f"In {summary['shortened']:,} the text did not fit, and the {summary['room']:,} tokens around the hole were read."
        )
    if summary["unfinished"]:
        parts.append(f"{summary['unfinished']:,} middles came to no end.")
    parts += [f"{note[0].upper()}{note[1:]}." for note in summary["notes"]]
    if summary["documents"] == 1:
        parts.append("One document allows no interval.")
    return Text(" ".join(parts))
