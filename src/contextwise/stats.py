"""Estimates with intervals; and losses of any training script, for ``contextwise decide``: a row for each held-out document.

Imports neither torch nor transformers; the estimates are imported when they are first used.
"""

import hashlib
import itertools
import json
import math
import operator
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from contextwise.base.errors import DataError
from contextwise.base.files import atomic_file, disk_errors
from contextwise.base.lazy import lazy_exports

if TYPE_CHECKING:
    from contextwise.base.estimates import CONFIDENCE, Estimate
    from contextwise.base.intervals import (
        NORMAL,
        Part,
        correlation_estimate,
        estimate,
        mean_correlation,
        mean_estimate,
        plus_minus,
        ratio_difference,
        ratios,
        student_t,
        wilson,
        with_seeds,
    )

__all__ = ["CONFIDENCE", "NORMAL", "Estimate", "LossWriter", "Part", "correlation_estimate", "estimate"]
__all__ += ["mean_correlation", "mean_estimate", "plus_minus", "ratio_difference", "ratios", "student_t"]
__all__ += ["wilson", "with_seeds"]
__getattr__, __dir__ = lazy_exports(__name__)


LONGEST_NAME = 80
JSON_LINES = (".jsonl", ".ndjson")


class LossWriter:
    """Write the losses of a run, a row a document, as JSON Lines; the file is complete when the block ends, or absent.

    ::

        with LossWriter("losses/rope-s3.jsonl", arm="rope", seed=3) as losses:
            for text in held_out:
                ids = tokenize(text)
                losses.add(text, tokens=len(ids) - 1, nats=total_loss(model, ids))

    Args:
        path: of the file, whose folder is made.
        arm: the way to train.
        seed: of the run; runs of other arms with this number have the same data in the same order.
        step: of the model that is scored.

    Raises:
        DataError: the file cannot be written, or no document was added.
        TypeError: the seed or the step is not a whole number.
    """

    def __init__(self, path: str | Path, arm: str, seed: int, step: int | None = None) -> None:
        self.path = Path(path)
        if not str(arm).strip():
            raise DataError("arm is empty; give the name of the way to train")
        if not self.path.name or (self.path.exists() and not self.path.is_file()):
            raise DataError(f"{str(path)!r} is no file that could be replaced; choose another path for the losses")
        if self.path.suffix.lower() not in JSON_LINES:
            raise DataError(
                f"{path} does not end with {' or '.join(JSON_LINES)}, but JSON Lines are written; name it so"
            )
        self._run: dict[str, Any] = {"arm": str(arm), "seed": operator.index(seed)}
        self._run |= {} if step is None else {"step": operator.index(step)}
        self._written: set[str] = set()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        with disk_errors("the losses", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._whole = atomic_file(self.path, "the losses")
        self._file = self._whole.__enter__()
        self._written.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._file = None
        if kind is None and not self._written:
            empty = DataError(f"no document was added, so {self.path} is not written; add each held-out document")
            self._whole.__exit__(type(empty), empty, None)
            raise empty
        return self._whole.__exit__(kind, error, trace)

    def add(self, document: str | int, tokens: float, nats: float, **more: Any) -> None:
        """Add a document.

        Args:
            document: its name, its number, or its text, which is named by its hash; equal long texts are
                parts of one document.
            tokens: that were predicted.
            nats: their summed loss; a tensor of one value or a number.
            more: ``bytes`` of the document, or the number of the ``part`` of it.

        Raises:
            DataError: a value is not finite, is negative, or the document was added already.
        """
        if self._file is None:
            raise DataError(f"{self.path} is not open; add documents inside the with block")
        if unknown := sorted({*more} - {"bytes", "part"}):
            raise DataError(f"a row has no {unknown[0]}; give bytes and part alone beside tokens and nats")
        name = str(document)
        if is_text := len(name) > LONGEST_NAME or not name.isprintable():
            name = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        row: dict[str, Any] = self._run | {"document": name}
        for column, number in {"tokens": tokens, "nats": nats, **more}.items():
            try:
                value = row[column] = float(number)
            except (TypeError, ValueError, RuntimeError):
                value = math.nan
            if not math.isfinite(value) or value < (0 if column in ("nats", "part") else 1):
                least = "0 or more" if column in ("nats", "part") else "1 or more"
                raise DataError(f"{column} of document {name} is {number!r}, but must be a finite number, {least}")
        if "part" in row:
            row["part"] = str(int(row["part"]))
        key = f"{name}\n{row.get('part', '')}"
        if is_text and "part" not in row and key in self._written:
            row["part"] = next(str(part) for part in itertools.count(2) if f"{name}\n{part}" not in self._written)
            key = f"{name}\n{row['part']}"
        if key in self._written:
            raise DataError(f"document {name} was added already; name documents apart, or number their parts: part=2")
        self._written.add(key)
        self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
