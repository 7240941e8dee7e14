"""A journal of finished rows, one JSON line each, written as soon as it is computed; a stopped run resumes from it."""

import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from contextwise.base.errors import ConfigError, DataError
from contextwise.base.files import disk_errors


def content_key(**content: Any) -> str:
    """SHA-256, hexadecimal, of all that a result depends on."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


Row = dict[str, Any]


def own_key(row: Row) -> Hashable:
    """What a row's field ``key`` holds."""
    return row["key"]


class Journal:
    """Rows by their keys.

    Attributes:
        rows: key -> row, in the order in which they were added.
    """

    def __init__(self, path: Path, file: BinaryIO, key: Callable[[Row], Hashable] = own_key) -> None:
        self.path, self.key = path, key
        self.rows: dict[Hashable, Row] = {}
        self._file = file
        self._writing = threading.Lock()
        self._read()

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path, key: Callable[[Row], Hashable] = own_key) -> Iterator["Journal"]:
        """Read what is there, and keep other processes out while the block runs.

        Args:
            key: tells rows apart.

        Raises:
            ConfigError: another process has it open.
            DataError: it cannot be read or written.
        """
        fresh = not path.parent.exists()
        with disk_errors("the answers", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+b")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another process is writing {path}; wait for it, or choose another --out"
                ) from None
            journal = cls(path, file, key)
            try:
                yield journal
            finally:
                if not journal.rows:
                    path.unlink()
                    if fresh:
                        path.parent.rmdir()

    def _read(self) -> None:
        self._file.seek(0)
        # What follows the last line's end was not written to its end.
        *lines, rest = self._file.read().split(b"\n")
        try:
            self.rows = {self.key(row): row for row in map(json.loads, lines)}
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.path} is damaged ({str(error)[:100]}); mend that line, or remove the file"
            ) from None
        self._file.truncate(self._file.tell() - len(rest))

    def add(self, *rows: Row) -> None:
        """Keep rows; they are on the disk when this returns. Threads may call it at once.

        Raises:
            DataError: the disk is full, or the place cannot be written to.
        """
        # Half of a surrogate pair, which a model can write, has no UTF-8: JSON's escapes are ASCII.
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        with self._writing, disk_errors("the answers", self.path):
            self._file.write(lines)
            self._file.flush()
            os.fsync(self._file.fileno())
            self.rows.update((self.key(row), row) for row in rows)
