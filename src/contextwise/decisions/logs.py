"""Logs of evaluation tools as rows of losses: samples of lm-evaluation-harness, and logs of Inspect.

Each is of one run: its arm and seed come from a label, ``ARM:SEED=PATH``, or from the name of its folder, ``ARM-s3`` or
``ARM-seed3``.
"""

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from contextwise.base.errors import DataError, one_line

RunLabel = tuple[str, int]
_LABEL = re.compile(r"([^=/]+):(\d+)=(.+)")
_NAME = re.compile(r"(.+?)[-_.](?:s|seed)[-_]?(\d+)")
ACCURACIES = ("acc", "exact_match", "em", "acc_norm")
"""Metrics of samples that are read as ``correct``; the first that a sample has."""
ROLLING = ("bits_per_byte", "byte_perplexity")
"""Metrics of rolling losses, whose samples hold a log-likelihood and a number of bytes."""
INSPECT = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, True: 1.0, False: 0.0}


def run_label(source: str) -> tuple[Path, RunLabel | None]:
    """A path, and the arm and seed that it is labelled with or that its name says."""
    if (match := _LABEL.fullmatch(source)) and not Path(source).exists():
        return Path(match[3]), (match[1], int(match[2]))
    path = Path(source)
    match = _NAME.fullmatch(path.stem if path.suffix else path.name)
    return path, (match[1], int(match[2])) if match else None


def lm_eval_rows(path: Path, label: RunLabel | None) -> pa.Table:
    """Rows of ``samples_TASK_*.jsonl``, or of the newest of each task below a folder (``lm_eval --log_samples``).

    A question is named by its task and the hash of its content. Rolling losses become nats and bytes, all others 0 to 1.

    Raises:
        DataError: there are none, or a line is no sample.
    """
    files = [path] if path.is_file() else _newest(path)
    if not files:
        raise DataError(
            f"{path} holds no samples_*.jsonl; give a folder that lm_eval --log_samples has written, or files of rows"
        )
    rows = []
    for file in files:
        task = re.sub(r"_\d{4}-\d\d-\d\dT.*", "", file.stem.removeprefix("samples_"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                sample = json.loads(line)
                name = f"{task}/{sample['doc_id']}/{sample.get('doc_hash', '')[:12]}"
                rows.append({"document": name, **_measured(sample)})
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(f"{file}, line {number} is no sample of lm_eval: {one_line(error)}") from None
    return _labelled(rows, path, label)


def _newest(folder: Path) -> list[Path]:
    """The newest file of samples of each task; lm_eval names them by the time, which sorts."""
    by_task = {re.sub(r"_\d{4}-\d\d-\d\dT.*", "", file.stem): file for file in sorted(folder.rglob("samples_*.jsonl"))}
    return list(by_task.values())


def _measured(sample: dict[str, Any]) -> dict[str, float]:
    """What a sample of lm_eval says: nats and bytes, or whether it is correct."""
    for name in ROLLING:
        if isinstance(sample.get(name), list):
            likelihood, size = sample[name]
            return {"nats": -float(likelihood), "tokens": float(size), "bytes": float(size)}
    name = next(name for name in ACCURACIES if name in sample)
    return {"correct": float(sample[name])}


def inspect_rows(path: Path, label: RunLabel | None) -> pa.Table:
    """Rows of a log of Inspect, ``.eval`` or ``.json``: a sample is a question, its epochs are parts of it.

    Raises:
        DataError: the file is no such log, or a sample has no score of 0 to 1.
    """
    rows = []
    try:
        for sample in _samples(path):
            ((_, score), *_) = sample["scores"].items()
            value = score["value"]
            correct = INSPECT[value] if value in INSPECT else float(value)
            rows.append({"document": str(sample["id"]), "part": str(sample.get("epoch", 1)), "correct": correct})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is no log of Inspect with scores: {one_line(error)}; give files with rows of losses"
        ) from None
    return _labelled(rows, path, label)


def _samples(path: Path) -> Iterator[dict[str, Any]]:
    """The samples of a log of Inspect."""
    if path.suffix == ".json":
        yield from json.loads(path.read_text(encoding="utf-8"))["samples"]
        return
    with zipfile.ZipFile(path) as log:
        for name in sorted(log.namelist()):
            if name.startswith("samples/") and name.endswith(".json"):
                yield json.loads(log.read(name))


def _labelled(rows: list[dict[str, Any]], path: Path, label: RunLabel | None) -> pa.Table:
    """The rows with the arm and the seed of their run."""
    if label is None:
        raise DataError(f"{path} says neither its arm nor its seed; label it: ARM:SEED={path}")
    if not rows:
        raise DataError(f"{path} has no samples")
    arm, seed = label
    return pa.Table.from_pylist([{"arm": arm, "seed": seed, **row} for row in rows])
