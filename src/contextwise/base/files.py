"""Files and folders that are complete or absent, whatever happens in between.

A file or folder is written beside its final place, synced to disk, and renamed. A reader, or a process that starts again
after a power cut, sees the old content or the new, never a mixture.
"""

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextwise.base.errors import DataError

PARTIAL = ".partial-"
_REFUSED = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def sync_directory(path: Path) -> None:
    """Make the names in ``path`` durable (a rename is only durable after its folder is synced)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Sync every file and folder under ``path`` to disk."""
    for folder, _, names in os.walk(path):
        for name in names:
            with (Path(folder) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(folder))


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def disk_errors(what: str, where: Path) -> Iterator[None]:
    """Turn a full disk or a refused write into a :class:`DataError` that says what could not be written, and where."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DataError(
                f"no space left while writing {what} to {where}; nothing that was there has changed: "
                "free some space, or choose another folder, and run the same command again"
            ) from error
        if isinstance(error, _REFUSED) or error.errno in (errno.EROFS, errno.ENOENT):
            raise DataError(f"{what} cannot be written to {where}: {error.strerror or error}") from error
        raise


@contextlib.contextmanager
def atomic_directory(path: Path, what: str = "the output") -> Iterator[Path]:
    """Yield an empty folder beside ``path``; on success sync it and rename it to ``path``, on failure remove it.

    ``path`` itself must not exist when the block ends. Leftovers of an earlier, killed attempt at the same ``path`` are
    removed first.

    Raises:
        DataError: the disk is full, or the place cannot be written to.
    """
    with disk_errors(what, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in path.parent.glob(f"{glob.escape(path.name)}{PARTIAL}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        partial = path.parent / f"{path.name}{PARTIAL}{uuid.uuid4().hex[:8]}"
        partial.mkdir()
        try:
            yield partial
            sync_tree(partial)
            partial.rename(path)
            sync_directory(path.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextlib.contextmanager
def replaced_directory(path: Path, what: str = "the output") -> Iterator[Path]:
    """As :func:`atomic_directory`, but a folder that is already at ``path`` is replaced; on failure it stays.

    Raises:
        DataError: the disk is full, or the place cannot be written to.
    """
    replaced = path.parent / f"{path.name}{PARTIAL}{uuid.uuid4().hex[:8]}"
    try:
        with atomic_directory(path, what) as folder:
            yield folder
            if path.exists():
                path.rename(replaced)
    except BaseException:
        if replaced.exists() and not path.exists():
            replaced.rename(path)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def atomic_write(path: Path, content: str | bytes, what: str = "the file") -> None:
    """Replace the file at ``path`` by ``content`` (UTF-8 if text) in one step."""
    data = content.encode() if isinstance(content, str) else content
    with disk_errors(what, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}{PARTIAL}{uuid.uuid4().hex[:8]}")
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            sync_directory(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any, what: str = "the file") -> None:
    """Write ``value`` as indented JSON, atomically. NaN and infinities are refused (JSON has none)."""
    atomic_write(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", what)


def read_json(path: Path, what: str) -> Any:
    """Read a JSON file that Contextwise wrote.

    Raises:
        DataError: the file is missing, unreadable or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{what} is missing: there is no file {path}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{what} cannot be read: {path}: {error}") from None
