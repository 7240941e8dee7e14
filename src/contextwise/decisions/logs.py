"""Samples that lm-evaluation-harness logs, as rows of losses; and the run that a source is of.

The arm and seed of logs come from a label, ``ARM:SEED=PATH``, or from the name of their folder, ``ARM-s3`` or ``ARM-seed3``.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from contextwise.base.errors import DataError, one_line

_LABEL = re.compile(r"([^=/]+):(\d+)=(.+)")
_NAME = re.compile(r"(.+?)[-_.](?:s|seed)[-_]?(\d+)")
_ENDING = re.compile(r"(\.(jsonl|ndjson|csv|tsv|parquet))?(\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True)
class RunLabel:
    """A path, with the arm and the seed that were given for it, or that its name says."""

    path: Path
    arm: str | None = None
    seed: int | None = None
    given: bool = False


NO_LABEL = RunLabel(Path())
ACCURACIES = ("acc", "exact_match", "em", "acc_norm")
"""Metrics of samples that are read as ``correct``; the first that a sample has."""
TIME = re.compile(r"_\d{4}-\d\d-\d\dT.*")
ROLLING = ("bits_per_byte", "byte_perplexity")
"""Metrics of rolling losses, whose samples hold a log-likelihood and a number of bytes."""


def run_label(source: str) -> RunLabel:
    """The path of a source, and its run."""
    if (match := _LABEL.fullmatch(source)) and not Path(source).exists():
        return RunLabel(Path(match[3]), match[1], int(match[2]), given=True)
    path = Path(source)
    match = _NAME.fullmatch(_ENDING.sub("", path.name))
    return RunLabel(path, match[1], int(match[2])) if match else RunLabel(path)


def lm_eval_rows(path: Path, label: RunLabel) -> pa.Table:
    """Rows of ``samples_TASK_*.jsonl``, or of the newest of each task below a folder (``lm_eval --log_samples``).

    A question is named by its task and the hash of its content. Rolling losses become nats and bytes, all others 0 to 1.
    """
    files = [path] if path.is_file() else _newest(path)
    if not files:
        raise DataError(
            f"{path} holds no samples_*.jsonl; give a folder that lm_eval --log_samples has written, or files of rows"
        )
    rows = []
    for file in files:
        task = TIME.sub("", file.stem.removeprefix("samples_"))
        chosen = None  # the first filter of the answers counts
        for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                sample = json.loads(line)
                chosen = chosen or sample.get("filter", "none")
                if sample.get("filter", "none") == chosen:
                    name = f"{task}/{sample['doc_id']}/{sample.get('doc_hash', '')[:12]}"
                    rows.append({"document": name, **_measured(sample)})
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise DataError(
                    f"{file}, line {number} is no sample of lm_eval: {one_line(error)}; remove the file"
                ) from None
    if len({*map(tuple, rows)}) > 1:
        raise DataError(f"{path} mixes questions and rolling losses; give the samples of one kind of task at a time")
    return _labelled(rows, path, label)


def _newest(folder: Path) -> list[Path]:
    """The newest file of samples of each task, by the time in its name."""
    files = sorted(
        folder.rglob("samples_*.jsonl"), key=lambda file: match[0] if (match := TIME.search(file.stem)) else ""
    )
    return list({TIME.sub("", file.stem): file for file in files}.values())


def _measured(sample: dict[str, Any]) -> dict[str, float]:
    """What a sample of lm_eval says: nats and bytes, or whether it is correct."""
    for name in ROLLING:
        if isinstance(sample.get(name), list):
            likelihood, size = sample[name]
            return {"nats": -float(likelihood), "bytes": float(size)}
    for name in ACCURACIES:
        if name in sample:
            return {"correct": float(sample[name])}
    raise KeyError(f"none of the metrics {', '.join((*ACCURACIES, *ROLLING))}")


def _labelled(rows: list[dict[str, Any]], path: Path, label: RunLabel) -> pa.Table:
    """The rows with the arm and the seed of their run."""
    if label.arm is None:
        raise DataError(f"{path} says neither its arm nor its seed; label it: ARM:SEED={path}")
    if not rows:
        raise DataError(f"{path} has no samples")
    return pa.Table.from_pylist([{"arm": label.arm, "seed": label.seed, **row} for row in rows])
