"""Unfinished work: the finished part of a stopped measurement, stored beside the folder of its result."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from contextwise.base.errors import ConfigError, DataError, Interrupted
from contextwise.base.files import atomic_write, disk_errors, exclusive, read_sealed_json, write_sealed_json
from contextwise.base.progress import interruption, progress_bar
from contextwise.base.schemas import parse_json

if TYPE_CHECKING:
    import numpy as np
    import torch

QUESTION = "question.json"
WHAT = "the unfinished work"
SECONDS_BETWEEN_SAVES = 30.0
Row = dict[str, Any]


class Journal:
    """Finished rows, one JSON line each, written as soon as they are computed; a stopped run resumes from them.

    ``rows`` maps the ``key`` of each row to the row, in the order in which they were added.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self._file = path, file
        file.seek(0)
        *lines, partial = file.read().split(b"\n")  # the last row may not be complete
        try:
            self.rows: dict[Hashable, Row] = {row["key"]: row for row in map(parse_json, lines)}
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged ({str(error)[:100]}); fix that line, or remove the file") from None
        file.truncate(file.tell() - len(partial))

    def add(self, *rows: Row) -> None:
        """Keep rows; on return they are on the disk, else a DataError is raised."""
        # Half of a surrogate pair, which a model can write, has no UTF-8: JSON's escapes are ASCII.
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        with disk_errors("the answers", self.path):
            self._file.write(lines)
            self._file.flush()
            os.fsync(self._file.fileno())
        self.rows.update((row["key"], row) for row in rows)


class Work:
    """Unfinished work of one measurement, in ``RESULT.unfinished/``. Only the same question resumes it.

    The folder ``path`` exists once something is kept.
    """

    def __init__(self, path: Path, key: str, question: dict[str, Any]) -> None:
        self.path, self.key, self.question = path, key, question
        self._saved = time.monotonic()

    @classmethod
    @contextlib.contextmanager
    def opened(cls, result: Path, key: str, question: dict[str, Any], overwrite: bool = False) -> Iterator["Work"]:
        """Hold the result's folder for this process, and open the unfinished work beside it.

        A second process with the same result waits.

        Args:
            question: the content of ``key``, for messages.
            overwrite: discard unfinished work of another question instead of refusing.

        Raises:
            ConfigError: there is unfinished work of another question.
            DataError: the folder cannot be written.
        """
        with exclusive(result, "the result", wait=True):
            work = cls(result.with_name(f"{result.name}.unfinished"), key, question)
            work._check(overwrite)
            try:
                yield work
            finally:
                if not work.empty and not any(
                    file.stat().st_size for file in work.path.iterdir() if file.name != QUESTION
                ):
                    work.discard()

    def _check(self, overwrite: bool) -> None:
        if self.empty:
            return
        try:
            stored = read_sealed_json(self.path / QUESTION, WHAT)
        except DataError:
            stored = {}
        if stored.get("key") == self.key:
            return
        if stored and not overwrite:
            ours, theirs = self.question.get("settings", {}), stored.get("settings", {})
            different = [name for name in ours if ours[name] != theirs.get(name)] or ["model or data"]
            raise ConfigError(
                f"{self.path} holds unfinished work of another measurement ({', '.join(different[:5])} differ); choose "
                "another folder for the result, or remove that one"
            )
        self.discard()

    def _start(self) -> None:
        if not (self.path / QUESTION).exists():
            write_sealed_json(self.path / QUESTION, {"key": self.key, **self.question}, WHAT)

    @property
    def empty(self) -> bool:
        """Whether nothing is kept."""
        return not self.path.is_dir()

    @contextlib.contextmanager
    def journal(self, name: str) -> Iterator[Journal]:
        """Rows that are kept as soon as they are added, in ``NAME.jsonl``; DataError if it is damaged, or not writable."""
        self._start()
        path = self.path / f"{name}.jsonl"
        with disk_errors("the answers", path):
            file = path.open("a+b")
        with file:
            yield Journal(path, file)

    def rows(
        self,
        name: str,
        count: int,
        batches: "Iterable[Iterable[int]]",
        make: Callable[[list[int]], Iterable[Row]],
        title: str,
    ) -> list[Row]:
        """Rows 0 to ``count`` - 1 of what ``name`` says, kept batch by batch; ``make`` gets the indices of a batch.

        A batch is made whole if one of its rows was not kept: with the same rounding, however often a measurement is stopped.
        """
        with self.journal(name) as journal, progress_bar(title, count, name) as advance:
            for indices in (list(map(int, batch)) for batch in batches):
                if not all(index in journal.rows for index in indices):
                    interruption.check(f"stopped after {len(journal.rows):,} of {count:,} {name}")
                    journal.add(*({"key": i, **row} for i, row in zip(indices, make(indices), strict=True)))
                advance(len(indices))
            return [journal.rows[index] for index in range(count)]

    def save(self, name: str, arrays: "Mapping[str, np.ndarray | torch.Tensor]") -> None:
        """Keep arrays, or tensors, under a name, in place of the earlier ones, in one step; DataError if the disk is full."""
        import numpy as np
        import torch
        from safetensors.torch import save

        tensors = {
            key: (torch.from_numpy(np.array(array)) if isinstance(array, np.ndarray) else array).contiguous()
            for key, array in arrays.items()
        }
        self._start()
        atomic_write(self.path / f"{name}.safetensors", save(tensors), WHAT)

    def checkpoint(
        self, name: str, arrays: "Callable[[], Mapping[str, np.ndarray | torch.Tensor]]", where: str, now: bool = False
    ) -> None:
        """Save arrays as :meth:`save` does if the last time was long ago or ``now``.

        Raises:
            Interrupted: the process received a request to stop; they are saved. ``where`` ends the message, after "stopped".
        """
        stop = interruption.requested
        if stop or now or time.monotonic() - self._saved > SECONDS_BETWEEN_SAVES:
            self.save(name, arrays())
            self._saved = time.monotonic()
        if stop:
            raise Interrupted(f"the measurement was stopped {where}")

    def load(self, name: str, torch: bool = False) -> Any:
        """Load the arrays that were saved under a name (tensors if ``torch``), or None if they are missing or damaged."""
        from safetensors import SafetensorError
        from safetensors import numpy as arrays
        from safetensors import torch as tensors

        try:
            return (tensors if torch else arrays).load_file(self.path / f"{name}.safetensors")
        except (OSError, SafetensorError):
            return None

    def resumed(self, name: str, like: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray] | None":
        """The finite arrays that were kept under a name; None unless they have the names, shapes and types of ``like``."""
        import numpy as np

        saved = self.load(name)
        if saved is None or saved.keys() != like.keys():
            return None
        same = all(saved[n].shape == like[n].shape and saved[n].dtype == like[n].dtype for n in like)
        return saved if same and all(np.isfinite(array).all() for array in saved.values()) else None

    def discard(self) -> None:
        """Remove all that is kept."""
        shutil.rmtree(self.path, ignore_errors=True)
