"""How well a model fills holes whose middles are known: exact match and edit similarity, with intervals over documents.

White space at the end of the middle and of what is expected is taken off first.

    exact match      = share of holes in which the two are the same
    edit similarity  = mean of 1 - d / (m + n); d: characters to delete and insert to make one of the other,
                       m and n: their lengths; 1 where both are empty

The second is what ``Levenshtein.ratio`` gives, and ``fuzz.ratio`` times 100, by which CodeXGLUE, RepoBench and CrossCodeEval
score completions. Nothing of what a model writes is executed.

Both are ratio estimators: sums over documents, divided by the number of holes. The intervals are those of
:mod:`contextwise.evaluation.metrics`.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rapidfuzz.distance import Indel
from rich.text import Text

from contextwise.base.environment import describe_environment
from contextwise.base.errors import ConfigError, Interrupted
from contextwise.base.estimates import CONFIDENCE
from contextwise.base.files import read_json, write_json
from contextwise.base.intervals import RESAMPLES, ratios
from contextwise.base.memory import keep_freed_memory
from contextwise.base.progress import progress_bar
from contextwise.base.runs import RunFolder
from contextwise.base.tables import Table
from contextwise.evaluation.measures.infill.filling import (
    Filling,
    Infiller,
    Prompt,
    filling_objective,
    trained_context,
)
from contextwise.evaluation.measures.infill.tasks import TaskSet
from contextwise.evaluation.opening import chosen_device, chosen_dtype, default_destination, is_run
from contextwise.evaluation.scoring.windows import DEFAULT_BATCH_TOKENS
from contextwise.evaluation.tables import evaluation_table
from contextwise.models import load_generating_model, load_tokenizer

KIND = "infill"
MEASURES = {"exact_match": "exact match", "edit_similarity": "edit similarity"}


@dataclass(frozen=True)
class InfillEvaluation:
    """A finished evaluation; ``summary`` is the content of the file ``path``."""

    path: Path
    summary: dict[str, Any]


def exact_match(filled: str, expected: str) -> bool:
    """Whether the two are the same, up to white space at their ends."""
    return filled.rstrip() == expected.rstrip()


def edit_similarity(filled: str, expected: str) -> float:
    """1 - indel distance / (sum of lengths), of the two without white space at their ends; 0 to 1."""
    return float(Indel.normalized_similarity(filled.rstrip(), expected.rstrip()))


def evaluate_infill(
    source: str,
    tasks: TaskSet,
    *,
    spm: bool = False,
    max_new_tokens: int = 64,
    context: int | None = None,
    batch_tokens: int | None = None,
    dtype: str = "auto",
    device: str = "auto",
    out: Path | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> InfillEvaluation:
    """Fill the holes with a model's likeliest tokens, score the middles, and write them beside the model's run.

    Args:
        source: a run folder, a Hugging Face model folder, or a name on the Hub.
        spm: ask a decoder in the order suffix, prefix, middle.
        max_new_tokens: most tokens of a middle.
        context: positions to use; by default those that the run was trained with, else all that the model has, or 1024.
        batch_tokens: positions of one batch, padding included; 16384 by default.
        dtype, device: as :func:`~contextwise.evaluation.measures.loss.evaluate_model` takes them.
        out: the JSON file; by default ``infill-LABEL.json`` where the run's evaluations are.
        should_stop: asked before each batch.

    Raises:
        ConfigError: the model was not trained to fill holes, an option is out of range, or ``out`` holds something else.
        CheckpointError: there is no such model.
        Interrupted: ``should_stop`` said so; nothing was written.
    """
    started = time.monotonic()
    if batch_tokens is not None and batch_tokens < 1:
        raise ConfigError(f"--batch-tokens is {batch_tokens}; it must be at least 1")
    in_run = out is None and is_run(source)
    out = out or default_destination(source, f"infill-{tasks.label}{'-spm' if spm else ''}.json")
    _check_file(out, tasks.source["fingerprint"], None if in_run else source)
    place = chosen_device(device)
    if place.type == "cpu":
        keep_freed_memory()
    model = load_generating_model(source, chosen_dtype(dtype, place), place)
    infiller = Infiller(
        model,
        load_tokenizer(source),
        spm=spm,
        objective=filling_objective(source),
        max_new_tokens=max_new_tokens,
        context=trained_context(source) if context is None else context,
    )
    prompts = [infiller.prompt(task.prefix, task.suffix) for task in tasks.tasks]
    with progress_bar(f"infill {Path(source).name}", len(prompts), "holes") as advance:
        fillings = _fill(infiller, prompts, batch_tokens or DEFAULT_BATCH_TOKENS, advance, should_stop)
    summary: dict[str, Any] = {
        "kind": KIND,
        "label": tasks.label,
        "model": source,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "data": tasks.source,
        "form": infiller.form.name,
        "max_new_tokens": infiller.new_tokens,
        "room": infiller.room,
        "shortened": sum(any(prompt.dropped) for prompt in prompts),
        **scores(tasks, fillings),
        "notes": tasks.notes,
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
        "seconds": round(time.monotonic() - started, 3),
        "environment": describe_environment(),
    }
    run = RunFolder(source)
    if run.finished and run.summary().get("corpus", {}).get("fingerprint") == tasks.source["fingerprint"]:
        summary["notes"] = [
            "the run was trained on these very documents; they are not held out",
            *tasks.notes,
        ]
    write_json(out, summary, "the evaluation")
    return InfillEvaluation(out, summary)


def _fill(
    infiller: Infiller,
    prompts: list[Prompt],
    batch_tokens: int,
    advance: Callable[..., None],
    should_stop: Callable[[], bool] | None,
) -> list[Filling]:
    """The middles, in the order of the prompts; those of like length go together, the longest first."""
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i].ids))
    fillings: dict[int, Filling] = {}
    first = 0
    while first < len(order):
        if should_stop is not None and should_stop():
            raise Interrupted("the evaluation was stopped; nothing was written, run the same command again")
        rows = max(1, batch_tokens // (len(prompts[order[first]].ids) + infiller.new_tokens))
        chosen = order[first : first + rows]
        fillings.update(zip(chosen, infiller.fill([prompts[i] for i in chosen]), strict=True))
        advance(len(chosen))
        first += rows
    return [fillings[i] for i in range(len(prompts))]


def scores(tasks: TaskSet, fillings: list[Filling]) -> dict[str, Any]:
    """Both measures with their intervals over documents, the counts, and each middle with its scores."""
    documents = {
        name: place for place, name in enumerate(dict.fromkeys(task.document for task in tasks.tasks))
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
    places = [documents[task.document] for task in tasks.tasks]
    holes = np.bincount(places)
    found = {
        name: ratios(np.bincount(places, weights=[row[name] for row in rows]), {"holes": holes})[
            "holes"
        ].to_dict()
        for name in MEASURES
    }
    counts = Counter(row["complete"] for row in rows)
    return {
        "documents": len(documents),
        "holes": len(rows),
        "unfinished": counts[False],
        **found,
        "rows": rows,
    }


def _check_file(path: Path, fingerprint: str, model: str | None) -> None:
    """
    Args:
        model: of which an evaluation already there must be; None inside the model's own run.

    Raises:
        ConfigError: the place holds something else than an evaluation of this model on these holes.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give --out the name of a JSON file")
    if not path.exists():
        return
    there = read_json(path, "what lies where the evaluation goes")
    if not isinstance(there, dict) or there.get("kind") != KIND:
        raise ConfigError(
            f"{path} holds something that is not an evaluation of infilling; give another place with --out"
        )
    other_model = model is not None and Path(there["model"]).resolve() != Path(model).resolve()
    if other_model or there["data"]["fingerprint"] != fingerprint:
        other = f"another model, {there['model']}" if other_model else f"other data, {there['data']['path']}"
        raise ConfigError(
            f"{path} holds an evaluation of {other}; give another place with --out, or remove that file"
        )


def infill_heading(summary: dict[str, Any]) -> Text:
    """What was filled, and how; and what a reader of the figures must know."""
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


def infill_table(summary: dict[str, Any]) -> Table:
    """The measures of one evaluation."""
    return evaluation_table(summary, MEASURES)
