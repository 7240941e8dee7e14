"""What measurements by questions and answers have in common: RULER's, and those on long tasks."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from contextwise.base.environment import describe_environment
from contextwise.base.errors import ConfigError
from contextwise.base.estimates import CONFIDENCE
from contextwise.base.files import atomic_directory, atomic_write, read_json, write_json
from contextwise.base.intervals import RESAMPLES
from contextwise.base.progress import progress_bar
from contextwise.evaluation.answering.batches import AnswerLog, Batch, Key, ModelReader, Prompted, answer_all
from contextwise.evaluation.results import Measured

SUMMARY, ANSWERS = "summary.json", "answers.jsonl"
Results = tuple[dict[str, Any], list[dict[str, Any]]]
"""What goes into ``summary.json``, and the lines of ``answers.jsonl``."""


def check_batch_tokens(batch_tokens: int | None) -> None:
    """
    Raises:
        ConfigError: it is less than 1.
    """
    if batch_tokens is not None and batch_tokens < 1:
        raise ConfigError(f"--batch-tokens is {batch_tokens}; it must be at least 1")


def asked_of(source: str, model: PreTrainedModel, settings: dict[str, Any]) -> dict[str, Any]:
    """What answers depend on; a run goes on from answers with the same only."""
    return {
        "model": source,
        "weights": weights_fingerprint(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        **settings,
    }


def weights_fingerprint(model: PreTrainedModel) -> str:
    """SHA-256 of names, shapes and up to 1,024 evenly chosen values of each weight: tells models apart, fast for large ones."""
    digest = hashlib.sha256()
    for name, weight in model.state_dict().items():
        flat = weight.detach().reshape(-1)
        chosen = flat[:: max(1, flat.numel() // 1024)].to(device="cpu", dtype=torch.float64)
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode() + chosen.numpy().tobytes())
    return digest.hexdigest()


def answer_and_write(
    kind: str,
    out: Path,
    asked: dict[str, Any],
    reader: ModelReader,
    questions: Mapping[str, Sequence[Prompted]],
    batches: Sequence[Batch],
    results: Callable[[dict[Key, str]], Results],
    *,
    notes: list[str],
    started: float,
    should_stop: Callable[[], bool] | None = None,
) -> Measured:
    """Answer all questions, from the log what is there already, and write what that comes to.

    Args:
        kind: of the measurement.
        asked: what the answers depend on; see :func:`asked_of`.
        results: of the answers.
        notes: what a reader of the figures should know.
        started: time.monotonic() of the measurement's start.
        should_stop: asked before each batch.

    Raises:
        ConfigError: another process writes there, or what was begun there has other settings.
        DataError: the disk is full, or the place cannot be written to.
        Interrupted: ``should_stop`` said so; what was answered is kept.
    """
    with AnswerLog.of(out, asked) as log:
        total = sum(len(batch.indices) for batch in batches)
        with progress_bar(f"{kind} {Path(asked['model']).name}", total, "answers") as advance:
            answer_all(reader, questions, batches, log, advance=advance, should_stop=should_stop)
        found, rows = results(log.answers)
        summary = {
            "kind": kind,
            **asked,
            **found,
            "parameters": sum(parameter.numel() for parameter in reader.model.parameters()),
            "notes": notes,
            "confidence": CONFIDENCE,
            "resamples": RESAMPLES,
            "seconds": round(time.monotonic() - started, 3),
            "environment": describe_environment(),
        }
        written = write_evaluation(out, summary, rows)
        log.remove()
    return written


def finished_evaluation(out: Path, asked: dict[str, Any], kind: str, what: str) -> Measured | None:
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
