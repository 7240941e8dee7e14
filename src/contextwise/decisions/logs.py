"""Logs of other tools as rows of losses: samples of lm-evaluation-harness, logs of Inspect, runs of W&B and TensorBoard.

Of the last two the final held-out loss is read, a mean of the whole run. Each log is of one run: its arm and seed come from a
label, ``ARM:SEED=PATH``, or from the name of its folder, ``ARM-s3`` or ``ARM-seed3``.
"""

import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from contextwise.base.errors import DataError, not_installed, one_line
from contextwise.base.estimates import listed
from contextwise.base.progress import say

_LABEL = re.compile(r"([^=/]+):(\d+)=(.+)")
_NAME = re.compile(r"(.+?)[-_.](?:s|seed)[-_]?(\d+)")
_ENDING = re.compile(r"(\.(jsonl|ndjson|csv|tsv|parquet|eval|json))?(\.gz)?$", re.IGNORECASE)


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
WANDB, TENSORBOARD = "wandb-summary.json", "events.out.tfevents.*"
HELD_OUT = {"val", "valid", "validation", "eval", "evaluation", "test", "held", "heldout"}
"""Words in the name of a held-out loss, such as ``eval_loss`` or ``val/loss``."""
ZSTANDARD = 93
"""Number of the compression in a zip file."""
INSPECT = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, True: 1.0, False: 0.0}


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


def inspect_rows(path: Path, label: RunLabel) -> pa.Table:
    """Rows of a log of Inspect, ``.eval`` or ``.json``: a sample is a question, its epochs are parts of it.

    Raises:
        DataError: the file is no such log, or a sample has no score of 0 to 1.
    """
    rows = []
    try:
        for sample in _samples(path):
            if not sample["scores"]:
                raise ValueError(f"sample {sample['id']} has no score, as where a run has failed")
            ((_, score), *_) = sample["scores"].items()
            value = score["value"]
            correct = INSPECT[value] if value in INSPECT else float(value)
            rows.append({"document": str(sample["id"]), "part": str(sample.get("epoch", 1)), "correct": correct})
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,
        zlib.error,
        zipfile.BadZipFile,
    ) as error:
        raise DataError(
            f"{path} is no log of Inspect with scores: {one_line(error)}; give files with rows of losses"
        ) from None
    return _labelled(rows, path, label)


def is_tracked(path: Path) -> bool:
    """Whether a folder is a run of W&B, or holds one of TensorBoard."""
    patterns = (WANDB, f"files/{WANDB}", "*.wandb", TENSORBOARD)
    return any(file.is_file() for pattern in patterns for file in path.glob(pattern))


def tracked_rows(path: Path, label: RunLabel) -> pa.Table:
    """The row of the last held-out loss that a run has logged to W&B or TensorBoard.

    Raises:
        DataError: the log cannot be read, or has no held-out loss or several.
    """
    try:
        scalars = _of_tensorboard(path) if any(path.glob(TENSORBOARD)) else _of_wandb(path)
    except ImportError:
        raise DataError(f"{path} is a run of TensorBoard, {not_installed('tensorboard')}") from None
    except (OSError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{path} is a run of W&B or TensorBoard that cannot be read: {one_line(error)}; write its loss "
            "to a CSV file with the columns arm, seed, loss"
        ) from None
    found = [name for name in scalars if _is_held_out_loss(name)]
    if len(found) != 1:
        what = (
            f"the held-out losses {listed(found)}" if found else f"no held-out loss among {listed(list(scalars)[:8])}"
        )
        raise DataError(f"{path} has {what}; write the one that counts to a CSV file with the columns arm, seed, loss")
    loss, step = scalars[found[0]]
    say(f"note: {path}: {found[0]}, step {step:,}, {loss:.4f}")
    return _labelled([{"loss": loss, "step": step}], path, label)


def _is_held_out_loss(name: str) -> bool:
    """Whether a scalar is a loss of held-out text by its name: of whole words, none of them about training."""
    words = re.findall(r"[a-z]+", name.lower())
    return "loss" in words and not HELD_OUT.isdisjoint(words) and not any(word.startswith("train") for word in words)


def _of_wandb(path: Path) -> dict[str, tuple[float, int]]:
    """The last values of a run of W&B, and its last step."""
    file = next((each for each in (path / WANDB, path / "files" / WANDB) if each.is_file()), None)
    if file is None:
        raise ValueError("an offline run keeps no summary")
    values = json.loads(file.read_text(encoding="utf-8"))
    numbers = {name: value for name, value in values.items() if type(value) in (int, float)}
    step = min(max(0, int(numbers.get("_step", 0))), 2**62)
    return {name: (float(value), step) for name, value in numbers.items()}


def _of_tensorboard(path: Path) -> dict[str, tuple[float, int]]:
    """The last value and step of each scalar of a run of TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path), size_guidance={"scalars": 1, "tensors": 1})
    events.Reload()
    last = {tag: events.Scalars(tag)[-1] for tag in events.Tags()["scalars"]}
    return {tag: (float(event.value), int(event.step)) for tag, event in last.items()}


def _samples(path: Path) -> Iterator[dict[str, Any]]:
    """The samples of a log of Inspect."""
    if path.suffix == ".json":
        yield from json.loads(path.read_text(encoding="utf-8"))["samples"]
        return
    with zipfile.ZipFile(path) as log:
        for member in sorted(log.infolist(), key=lambda member: member.filename):
            if member.filename.startswith("samples/") and member.filename.endswith(".json"):
                yield json.loads(_content(path, log, member))


def _content(path: Path, log: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """The content of a member; Inspect compresses with Zstandard, which zipfile reads from Python 3.14 on."""
    if member.compress_type != ZSTANDARD:
        return log.read(member)
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)  # the local name and extra field
        compressed = pa.BufferReader(file.read(member.compress_size))
    return pa.CompressedInputStream(compressed, "zstd").read()


def _labelled(rows: list[dict[str, Any]], path: Path, label: RunLabel) -> pa.Table:
    """The rows with the arm and the seed of their run."""
    if label.arm is None:
        raise DataError(f"{path} says neither its arm nor its seed; label it: ARM:SEED={path}")
    if not rows:
        raise DataError(f"{path} has no samples")
    return pa.Table.from_pylist([{"arm": label.arm, "seed": label.seed, **row} for row in rows])
