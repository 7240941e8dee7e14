"""Atomic writing of files and folders, and locks.

A file or folder is written next to its final path, synced to disk, and renamed. A reader, or a process that restarts after
a power failure, sees the old content or the new, never a mixture.
"""

import contextlib
import ctypes
import errno
import fcntl
import glob
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import AfterValidator

from contextwise.base.errors import ConfigError, ContextwiseError, DataError, one_line
from contextwise.base.hashes import sealed, unsealed
from contextwise.base.progress import interruption, say
from contextwise.base.schemas import parse_json

PARTIAL = ".partial-"
_REPLACED = f"{PARTIAL}old"
_REFUSED = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_WRITABLE = {errno.EROFS, errno.ENOENT, errno.EIO, errno.ENAMETOOLONG}
_NUMBER = re.compile(r"\(os error (\d+)\)")  # in the messages of libraries in Rust
_PATH = re.compile(r"(~|\.\.)?(/[^/\n{}<>|]+)(/[^/\n{}<>|]+)+/?|~(/[^/\n{}<>|]+)+/?")
_NO_FLOCK = {errno.ENOLCK, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.EBADF}
_ATTEMPTS = 4  # more than one: `is_held` of another process holds a lock for a moment
_POLL_SECONDS = 0.05


# ---- errors of disks ----


def system_error(error: BaseException) -> int | None:
    """The system's number (``errno``) of an error; libraries in Rust (safetensors, tokenizers) put it into the message."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    match = _NUMBER.search(str(error))
    return int(match[1]) if match else None


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one that caused it, says that the disk is full or a file as large as it may be."""
    cause: BaseException | None = error
    while cause is not None:
        if system_error(cause) in _FULL:
            return True
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return False


@contextlib.contextmanager
def disk_errors(what: str, where: Path) -> Iterator[None]:
    """Convert errors of a full disk or a forbidden write to a :class:`DataError` with a description and the path."""
    try:
        yield
    except ContextwiseError:
        raise
    except Exception as error:
        if is_disk_full(error):
            raise DataError(
                f"no space left while writing {what} to {where}; existing files are unchanged: "
                "free some space, or choose another folder, and run the same command again"
            ) from error
        number = system_error(error)
        if isinstance(error, _REFUSED) or number in _NOT_WRITABLE:
            reason = os.strerror(number) if number else error
            raise DataError(
                f"{what} cannot be written to {where}: {reason}; make its folder writable, or choose another"
            ) from error
        raise


# ---- paths ----


def expanded(path: str | Path) -> Path:
    """A path with a home folder in place of ``~``; a ConfigError if it is empty, or there is no such home folder."""
    if not str(path).strip():  # the path of an empty text is the current folder, which nobody meant
        raise ConfigError("a path is empty; give the path of a file or folder")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{path} begins with ~, but there is no such home folder; give the whole path, or begin it with ./~ if a file is "
            "called so"
        ) from None


ExpandedPath = Annotated[str, AfterValidator(lambda path: str(expanded(path)) if path.startswith("~") else path)]
"""A setting: a path that may begin with the ``~`` of a home folder."""


def still_at(given: Path, place: Path) -> Path:
    """The path ``given`` of an absolute place, if it still leads there from the current folder; else the place."""
    with contextlib.suppress(OSError):  # the current folder was removed
        if given.absolute() == place:
            return given
    return place


def output_folder(path: Path) -> Path:
    """The folder to write for a path that a user gave: what a link stands for, so that it has one lock.

    One without a name of its own (``.``, ``..``, ``/``) is refused: nothing can be written beside it and renamed.
    """
    path = expanded(path)
    if path.name in ("", "..", "."):
        raise ConfigError(f"the output is {str(path)!r}, which names no new folder; give a name in it")
    try:
        return path.resolve() if path.is_symlink() else path
    except RuntimeError:  # of Python before 3.13
        raise ConfigError(
            f"the output {path} is a link that leads back to itself; remove it, or give another path"
        ) from None


def without_folders(value: Any) -> Any:
    """A copy of JSON values in which each path of this machine with two parts or more is its last part."""
    if isinstance(value, dict):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(each) for each in value]
    if isinstance(value, str) and _PATH.fullmatch(value):
        return Path(value).name
    return value


def relative_to_here(text: str) -> str:
    """A text to be shared, in which paths begin at the current folder, or at ``~``, instead of at the root."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (which is an error for a user without one)
    for folder, name in ((Path.cwd(), ""), (home, "~/")):
        if len(folder.parts) > 1:
            here = re.escape(f"{folder}/")
            text = re.sub(rf"{here}(?<![\w.~/-]{here})", name, text)  # a pattern that begins with text is found faster
    return text


# ---- locks ----


def _lock_file(path: Path, inside: bool) -> Path:
    return path / ".lock" if inside else path.with_name(f".{path.name}.lock")


def _owner_file(file: Path) -> Path:
    """The lock file on a file system without ``flock``."""
    return file.with_name(f"{file.name}.owner")


_held: set[BinaryIO] = set()


def _hold_nothing() -> None:
    """Close the lock files that a forked child inherits: a loader of data would keep the locks of a parent that was killed."""
    for opened in _held:
        opened.close()
    _held.clear()


os.register_at_fork(after_in_child=_hold_nothing)


@contextlib.contextmanager
def exclusive(path: Path, what: str, *, wait: bool = False, inside: bool = False) -> Iterator[None]:
    """Lock ``path`` (``what`` in messages: "the corpus") against other processes that lock it, inside the ``with`` block.

    The lock is advisory (``flock``), on ``.NAME.lock`` next to ``path``, which need not exist. The system releases it when
    the process ends in any way. A second lock in the same process also waits or fails. On a file system without ``flock`` the
    lock is the existence of ``.NAME.lock.owner`` (:class:`filelock.SoftFileLock`). What killed attempts at writing ``path``
    left beside it is removed, and so are folders made for ``path`` in which nothing is written.

    With ``wait`` another process is waited for, with a message, where else a ConfigError is raised. With ``inside`` the lock
    file is ``.lock`` in the folder ``path``, which is created if it does not exist.
    """
    absolute = path.absolute()
    file = _lock_file(absolute, inside)
    created = [folder for folder in file.parents if not folder.exists()]
    attempts = 0
    while True:
        release = None
        with disk_errors(what, path):
            try:
                make_folder(file.parent)
                release = _locked(file)
            except FileNotFoundError:  # another process that wrote nothing removed the folder in the meantime
                if attempts == _ATTEMPTS - 1:  # or it cannot be created, as in /proc
                    raise
            except OSError:
                _remove_empty(created)
                raise
        if release is not None:
            break
        attempts += 1
        if attempts == _ATTEMPTS:
            owner = _owner_file(file)
            hint = f" (if none is, remove {owner})" if owner.exists() else ""
            if not wait:
                raise ConfigError(
                    f"another process is using {what} {path}{hint}; wait for it to end, or choose another folder"
                )
            say(f"another process is writing {what} {path}{hint}; waiting for it to end")
        interruption.check(f"stopped while waiting for {what} {path}; run the same command again")
        time.sleep(_POLL_SECONDS)
    try:
        if not inside:
            _remove_leftovers(absolute)
        yield
    finally:
        release()
        _remove_empty(created)


def _locked(file: Path) -> Callable[[], None] | None:
    """Create and lock the lock file; what removes and unlocks it, or None if another process holds it."""
    opened = file.open("ab")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        opened.close()
        if error.errno in _NO_FLOCK:
            file.unlink(missing_ok=True)
            return _locked_by_existence(_owner_file(file))
        if isinstance(error, BlockingIOError):
            return None
        raise

    def in_place() -> bool:
        try:
            return os.path.samestat(os.fstat(opened.fileno()), file.stat())
        except OSError:
            return False

    def release() -> None:
        with opened:
            _held.discard(opened)
            if in_place():
                file.unlink(missing_ok=True)

    # The last holder removes the file when it ends: a lock on a removed file has no effect.
    if not in_place():
        opened.close()
        return None
    _held.add(opened)
    return release


def _locked_by_existence(owner: Path) -> Callable[[], None] | None:
    """As :func:`_locked`, where there is no ``flock``; the file of a process of this machine that ended counts for nothing."""
    import filelock

    lock = filelock.SoftFileLock(owner, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        return None
    return lock.release


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders in which nothing was written, from the innermost one on."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _remove_leftovers(path: Path) -> None:
    """Remove what killed processes left beside a path that this process holds; a folder that was moved away comes back."""
    replaced = path.with_name(f"{path.name}{_REPLACED}")
    with contextlib.suppress(OSError):
        if replaced.exists() and not path.exists():  # a process was killed while it replaced the folder
            replaced.rename(path)
    for leftover in path.parent.glob(f"{glob.escape(path.name)}{PARTIAL}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def check_new(out: Path) -> None:
    """Raise a ConfigError if the folder to write exists."""
    if out.exists():
        is_held(out)  # which removes the lock of a process that was killed when it had written the folder
        raise ConfigError(f"{out} already exists; choose another folder")


def is_held(path: Path, *, inside: bool = False) -> bool:
    """Whether a process holds ``path`` with :func:`exclusive`. The lock file that a killed process left is removed."""
    file = _lock_file(path.absolute(), inside)
    if not file.exists() and not _owner_file(file).exists():
        return False
    try:
        release = _locked(file)
    except FileNotFoundError:  # its folder was removed
        return False
    except OSError:  # it is of another user, or on a disk that is read only
        return True
    if release is not None:
        release()
    return release is None


# ---- folders and files, written whole ----


def make_folder(folder: Path) -> None:
    """Create a folder, and those that contain it, if they do not exist; behind a link, what the link names."""
    Path(os.path.realpath(folder)).mkdir(parents=True, exist_ok=True)


def sync_directory(path: Path) -> None:
    """Sync the entries of a folder to disk (a rename is only durable after its folder is synced)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Sync every file and folder under ``path`` to disk."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(path, onerror=refuse):
        for name in names:
            with (Path(folder) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(folder))


@contextlib.contextmanager
def atomic_directory(
    path: Path, what: str = "the output", *, replace: bool = False, held: bool = False
) -> Iterator[Path]:
    """Yield an empty folder next to ``path``; on success sync it and rename it to ``path``, on failure remove it.

    One process at a time writes ``path``; others wait.
    With ``replace`` an existing folder is replaced; otherwise ``path`` must not exist when the block ends, or be an empty
    folder. With ``held`` this process already holds ``path``, or a folder that contains it, with :func:`exclusive`.
    """
    with disk_errors(what, path), contextlib.nullcontext() if held else exclusive(path, what, wait=True):
        partial = path.parent / f"{path.name}{PARTIAL}{uuid.uuid4().hex[:8]}"
        path.parent.mkdir(exist_ok=True)  # but not what contains it, which may have been moved away
        partial.mkdir()
        try:
            yield partial
            sync_tree(partial)
            replaces = replace and path.exists()
            if replaces:
                _exchange(partial, path)
            else:
                try:
                    partial.rename(path)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    raise DataError(
                        f"{path} was created by another process while {what} was written; choose another folder"
                    ) from None
            try:
                sync_directory(path.parent)
            except OSError:
                if replaces:
                    _exchange(partial, path)
                else:
                    path.rename(partial)
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _exchange(partial: Path, path: Path) -> None:
    """Swap two folders in one operation of the file system, or in two if it does not support that."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = _AT_FDCWD, os.fsencode(partial), _AT_FDCWD, os.fsencode(path)
    if swap is not None and swap(*names, _RENAME_EXCHANGE) == 0:
        return
    old = path.with_name(f"{path.name}{_REPLACED}")
    path.rename(old)
    try:
        partial.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left in ``folder``, which this process holds, of what they wrote there."""
    for leftover in folder.glob(f"*{PARTIAL}*"):
        if leftover.is_dir():
            _remove_leftovers(folder / leftover.name.partition(PARTIAL)[0])
        else:
            leftover.unlink(missing_ok=True)


def check_nothing_else(folder: Path, own: Collection[str]) -> None:
    """Raise a DataError if a folder that is to be replaced holds other files or folders than ``own``, which would be lost."""
    others = sorted(path.name for path in folder.iterdir() if path.name not in own) if folder.is_dir() else []
    if others:
        raise DataError(
            f"{folder} holds {others[0]}{' and more' * (len(others) > 1)}, which overwriting would remove; move it, or choose "
            "another folder"
        )


@contextlib.contextmanager
def atomic_file(path: Path, what: str) -> Iterator[BinaryIO]:
    """Yield a file next to ``path``; on success sync it and rename it to ``path``, on failure remove it.

    The file is locked until it is renamed, so that the next writer removes what killed ones left, and nothing else.
    """
    if path.absolute().parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir()):
        raise OSError(errno.EINVAL, "it is a pipe or a device; give a file", str(path))  # a file would take its place
    with disk_errors(what, path):
        for leftover in path.parent.glob(f".{glob.escape(path.name)}{PARTIAL}*"):
            with contextlib.suppress(OSError), leftover.open("r+b") as opened:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while the file is written
                leftover.unlink()
        partial, file = _partial_file(path)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                partial.replace(path)
            sync_directory(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _partial_file(path: Path) -> tuple[Path, BinaryIO]:
    """Create and lock a file next to ``path``; a new one where another process took the first one for a leftover."""
    while True:
        partial = path.with_name(f".{path.name}{PARTIAL}{uuid.uuid4().hex[:8]}")
        file = partial.open("xb")
        with contextlib.suppress(OSError):  # without flock no process takes it for a leftover
            fcntl.flock(file, fcntl.LOCK_EX)
        if partial.exists():
            return partial, file
        file.close()


def atomic_write(path: Path, content: str | bytes, what: str = "the file") -> None:
    """Replace the file at ``path`` by ``content`` (UTF-8 if text) atomically.

    The folder is created if it does not exist, except inside a folder of :func:`atomic_directory`: if that was removed, a
    new one would look complete. A full disk or a forbidden write is a :class:`DataError`.
    """
    if not any(PARTIAL in parent.name and not parent.exists() for parent in path.parents):
        with disk_errors(what, path):
            make_folder(path.parent)
    with atomic_file(path, what) as file:
        file.write(content.encode() if isinstance(content, str) else content)


# ---- JSON ----


def write_json(path: Path, value: Any, what: str = "the file") -> None:
    """Write ``value`` as indented JSON, atomically. NaN and infinities raise an error (JSON has none)."""
    atomic_write(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", what)


def read_json(path: Path, what: str, mend: str = "") -> Any:
    """Read a JSON file that Contextwise wrote; a DataError that ends with ``mend`` if it is missing or not JSON."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{what} is missing: there is no file {path}{mend and f'; {mend}'}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{what} cannot be read: {path}: {one_line(error)}{mend and f'; {mend}'}") from None


def write_sealed_json(path: Path, values: Mapping[str, Any], what: str = "the file") -> None:
    """Write JSON as :func:`write_json` does, with a hash of the values under ``sha256``."""
    write_json(path, sealed(values), what)


def read_sealed_json(path: Path, what: str, mend: str = "") -> dict[str, Any]:
    """Read what :func:`write_sealed_json` wrote, as :func:`read_json` does; a :class:`DataError` if it has changed too."""
    try:
        return unsealed(read_json(path, what, mend))
    except ValueError as error:
        raise DataError(f"{what} {path} is damaged: {error}{mend and f'; {mend}'}") from None
