"""A disk that fails in the middle of a command, and a power failure after which only what was synced is left."""

# ruff: noqa: PTH100, PTH110, PTH115, PTH118, PTH120
import builtins
import contextlib
import errno
import hashlib
import io
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
from safetensors import SafetensorError

from contextwise import cli
from contextwise.base.files import PARTIAL

POWER_FAILS = 99
"""Exit status of a process in which the power failed."""
_ERRORS = {"fsync": errno.EIO, "rename": errno.EIO}


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """While this lasts, the system refuses to let any file of this process grow beyond ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class _File(io.FileIO):
    """A file whose writes are operations of a disk."""

    def __init__(self, disk: "Disk", path: str, mode: str) -> None:
        self.disk = disk
        super().__init__(path, mode)

    def write(self, data: Any, /) -> int:
        self.disk.operation("write", self.name, lambda: super(_File, self).write(bytes(data)[: len(data) // 2]))
        return super().write(data)


class _Read(io.FileIO):
    """A file that cannot be read: the error names no file, as that of the system does not."""

    def _fail(self, *_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    read = readall = readinto = _fail


class Disk:
    """The operations on files below a folder while the ``with`` block runs: opening to write, writes, fsync, rename, mkdir.

    Writes of libraries in Rust and C++ are one operation for each file; :func:`no_file_above` fails inside them.

    Args:
        fails: number of the operation that fails, from 1; 0: none.
        stays: whether all that take space fail after it too.
        power: what happens at that operation instead; its argument writes the first half of what is written there.
        removals: whether the removals of files and folders are operations too.
        reads: reading a file and listing a folder are operations too, and the error is one of the disk (EIO).

    Attributes:
        operations: all, in order.
        synced: inode -> time of change that was synced.
        renamed: (source, target) of the last rename whose folder was not synced.
    """

    def __init__(
        self,
        root: Path,
        fails: int = 0,
        stays: bool = False,
        power: "Callable[[Disk, Callable[[], Any]], None] | None" = None,
        removals: bool = False,
        reads: bool = False,
    ) -> None:
        self.root, self.fails, self.stays, self.power = str(root.resolve()), fails, stays, power
        self.removals, self.reads = removals, reads
        self.operations: list[str] = []
        self.started = time.time_ns()
        self.synced: dict[int, int] = {}
        self.renamed: tuple[str, str] | None = None
        self._open, self._fsync, self._rename, self._mkdir = builtins.open, os.fsync, os.rename, os.mkdir
        self._unlink, self._rmdir = os.unlink, os.rmdir

    def operation(self, kind: str, path: Any, half: Callable[[], Any] = lambda: None) -> None:
        name = os.path.abspath(os.fsdecode(path))
        if not name.startswith(self.root):
            return
        self.operations.append(f"{kind} {name.removeprefix(self.root)}")
        number = len(self.operations)
        later = self.stays and 0 < self.fails < number and kind not in _ERRORS
        if number == self.fails or later:
            if self.power is not None:
                self.power(self, half)
                return
            code = errno.EIO if self.reads else _ERRORS.get(kind, errno.ENOSPC)
            raise OSError(code, os.strerror(code))

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *arguments: Any, **options: Any) -> Any:
        if isinstance(file, int) or not set("wax+") & set(mode) or not self._below(file):
            try:
                self.read(file)
            except OSError:
                raw = io.BufferedReader(_Read(file))
                return raw if "b" in mode else io.TextIOWrapper(raw, *arguments, **options)
            return self._open(file, mode, buffering, *arguments, **options)
        self.operation("open", file)
        raw = _File(self, os.fsdecode(file), mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, *arguments, **options)

    def read(self, path: Any) -> None:
        """A file is read, or a folder is listed."""
        if self.reads and not isinstance(path, int) and os.path.exists(path):
            self.operation("read", path)

    def _below(self, file: Any) -> bool:
        return os.path.abspath(os.fsdecode(file)).startswith(self.root)

    def fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.operation("fsync", path)
        self._fsync(descriptor)
        status = os.fstat(descriptor)
        self.synced[status.st_ino] = status.st_mtime_ns
        if self.renamed is not None and path == os.path.dirname(self.renamed[1]):
            self.renamed = None

    def rename(self, source: Any, target: Any, **options: Any) -> None:
        self.operation("rename", target)
        replaced = os.path.lexists(target)
        self._rename(source, target, **options)
        pair = os.path.abspath(os.fsdecode(source)), os.path.abspath(os.fsdecode(target))
        self.renamed = None if replaced else pair

    def mkdir(self, path: Any, *arguments: Any, **options: Any) -> None:
        self.operation("mkdir", path)
        self._mkdir(path, *arguments, **options)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self.operation("unlink", _in_folder(path, dir_fd))
        self._unlink(path, dir_fd=dir_fd)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self.operation("rmdir", _in_folder(path, dir_fd))
        self._rmdir(path, dir_fd=dir_fd)

    def _reader(self, function: Any, error: type[Exception] = OSError) -> Any:
        """A function of a library that reads the file or folder that is its first argument."""

        def read(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            try:
                if isinstance(path, str | os.PathLike):
                    self.read(path)
            except OSError as problem:
                if error is OSError:
                    raise OSError(problem.errno, problem.strerror, path) from None
                raise error(f"I/O error: {problem.strerror} (os error {problem.errno})") from None
            return function(path, *arguments, **options)

        return read

    def _library(self, function: Any, error: type[Exception], place: int) -> Any:
        """A function of a library that writes the file at the argument ``place``."""

        def write(*arguments: Any, **options: Any) -> Any:
            if isinstance(arguments[place], str | os.PathLike):
                try:
                    self.operation("write", arguments[place])
                except OSError as problem:
                    raise error(f"I/O error: {problem.strerror} (os error {problem.errno})") from None
            return function(*arguments, **options)

        return write

    @contextlib.contextmanager
    def installed(self) -> Iterator["Disk"]:
        """Let all operations of this process pass here."""
        with contextlib.ExitStack() as stack:
            for module, name, function in (
                (builtins, "open", self.open),
                (io, "open", self.open),
                (os, "fsync", self.fsync),
                (os, "rename", self.rename),
                (os, "replace", self.rename),
                (os, "mkdir", self.mkdir),
                (os, "listdir", self._reader(os.listdir)),
                (os, "scandir", self._reader(os.scandir)),
                (pa, "memory_map", self._reader(pa.memory_map)),
                (pq, "read_table", self._reader(pq.read_table)),
                (safetensors.torch, "safe_open", self._reader(safetensors.torch.safe_open, SafetensorError)),
                (pq, "write_table", self._library(pq.write_table, OSError, 1)),
                (pa.ipc, "new_stream", self._library(pa.ipc.new_stream, OSError, 0)),
                (
                    safetensors.torch,
                    "serialize_file",
                    self._library(safetensors.torch.serialize_file, SafetensorError, 1),
                ),
            ):
                stack.enter_context(mock.patch.object(module, name, function))
            if self.removals:
                for name, function in (("unlink", self.unlink), ("remove", self.unlink), ("rmdir", self.rmdir)):
                    stack.enter_context(mock.patch.object(os, name, function))
            yield self


def _in_folder(path: Any, folder: int | None) -> str:
    """A path that may be relative to an open folder."""
    inside = "" if folder is None else os.readlink(f"/proc/self/fd/{folder}")
    return os.path.join(inside, os.fsdecode(path))


def tree(folder: Path) -> dict[str, str]:
    """Relative path -> SHA-256 of every file below a folder, but locks and what a kill may leave beside a single file."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (path.name.startswith(".") and (path.name.endswith(".lock") or PARTIAL in path.name))
    }


def until_power_fails(root: Path, words: list[str], fails: int) -> None:
    """Run a command in this process until its operation ``fails``, and leave on the disk what a power failure would.

    Of files that changed since they were last synced, nothing is left but the name; a rename whose folder was not synced
    has not happened.
    """

    def lose(disk: Disk, _: Callable[[], Any]) -> None:
        if disk.renamed is not None and os.path.lexists(disk.renamed[1]):
            disk._rename(disk.renamed[1], disk.renamed[0])
        for path in root.rglob("*"):
            status = path.stat()
            changed = path.is_file() and status.st_size and status.st_mtime_ns >= disk.started
            if changed and disk.synced.get(status.st_ino) != status.st_mtime_ns:
                os.truncate(path, 0)
        os._exit(POWER_FAILS)

    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.chdir(root)
    sys.argv = ["contextwise", *words]
    with Disk(root, fails, power=lose).installed():
        cli.main()


def fresh(template: Path, folder: Path) -> Path:
    """A copy of a folder; file times are those of now."""
    shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(template, folder, copy_function=shutil.copyfile))
